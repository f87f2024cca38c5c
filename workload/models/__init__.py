"""What follows from the fields of a model: what may be together, the kinds of layers, counts."""
