"""Relaxed problems, whose bounds rule out rows of a space before these are lowered themselves."""
