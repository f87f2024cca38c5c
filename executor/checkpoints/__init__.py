"""Checkpoints: written while training goes on, checked when read, resumed under any plan."""
