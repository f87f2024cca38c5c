"""Measuring this machine: its kernels and collectives, or a plan's own ops."""
