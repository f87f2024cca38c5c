"""Layers with one mixer each: Mamba-2, attention, an MLP or experts."""
