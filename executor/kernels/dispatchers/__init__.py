"""Rows at places of experts, and masks that bring them there."""
