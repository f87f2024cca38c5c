"""Kernels of Mamba-2 layers between their linears."""
