"""Which rings the collectives of a shape go around, in each order of its ranks."""
