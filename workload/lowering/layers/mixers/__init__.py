"""Mixers: what a sublayer does to the residual stream between its norm and its addition."""
