"""How a drafter learns: low-rank adapters, training steps, online learning and its guard, adapters on disk."""
