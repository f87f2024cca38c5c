"""Collective algorithms on a machine: their phases, their choice, their times."""
