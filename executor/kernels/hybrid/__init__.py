"""Kernels of Mamba-2 layers between their linears, and of the activation that goes with them."""
