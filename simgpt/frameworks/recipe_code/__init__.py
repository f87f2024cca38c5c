"""Recipes written in Python, evaluated over their syntax tree: nothing of them is run."""
