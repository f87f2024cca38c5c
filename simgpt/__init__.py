"""Predict how long one training step of a GPT takes on a machine, and what limits it."""
