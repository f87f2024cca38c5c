"""Pipelines without time: schedules as lists of slots, and the order of their messages."""
