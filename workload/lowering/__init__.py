"""Lowering: from a GPT and a plan to the program of one rank."""

from workload.lowering.lower import lower

__all__ = ["lower"]
