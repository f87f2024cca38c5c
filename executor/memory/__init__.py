"""How much memory a step takes: what torch allocates, and what there is."""
