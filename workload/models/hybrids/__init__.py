"""Models whose layers have one mixer each: Mamba-2, attention, an MLP or experts."""
