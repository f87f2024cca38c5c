"""Figures of a report, and what is drawn in them."""
