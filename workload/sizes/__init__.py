"""Sizes that are no plain numbers: formulas, and arrays with one number for each plan."""
