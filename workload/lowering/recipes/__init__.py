"""The pass that has linears multiply by a recipe, and its casts."""
