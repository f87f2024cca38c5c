"""Matmuls of many experts, and where their rows lie once they are cast."""
