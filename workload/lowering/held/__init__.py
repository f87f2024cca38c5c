"""Passes of what software stacks hold in a device's memory unlike our executor."""
