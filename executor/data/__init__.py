"""The tokens that a run trains on."""
