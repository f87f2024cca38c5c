"""Casts into 8 bits, rows that are sent so, and what a matmul reads of them."""
