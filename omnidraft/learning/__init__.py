"""How a drafter learns: its backward pass, adapters, training steps, online learning, its guard."""
