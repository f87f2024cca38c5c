"""Kernels on a rank's part of each sequence, where `context` splits them."""
