"""Recipes: in which format linears multiply, and what a plan may have of them."""
