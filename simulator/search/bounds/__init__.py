"""Lower bounds of a plan's step and memory, for many plans at once."""
