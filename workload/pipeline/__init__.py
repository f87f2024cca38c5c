"""Pipelines without time: schedules as lists of slots, and which layers a stage holds."""
