"""How a drafter learns: backward pass, adapters, training steps, online learning, its guard."""
