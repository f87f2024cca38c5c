"""The parts of a model, each lowered forward and backward."""
