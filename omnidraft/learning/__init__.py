"""How a drafter learns: adapters, training steps, online learning and its guard."""
