"""How far from a prediction a measured step may lie."""
