"""Recipes: in which format linears multiply, and the pass that has programs do so."""
