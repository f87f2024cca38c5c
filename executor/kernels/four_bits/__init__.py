"""Casts into 4 bits, random rounding, and what a matmul reads of them."""
