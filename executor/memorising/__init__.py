"""Memorisation: training on documents that come again, and what greedy generation gives back."""
