"""Noise on every rank: how far steps vary, and what waiting for slow devices costs."""
