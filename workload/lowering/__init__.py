"""Lowering: from a GPT and a plan to the program of one rank."""

from workload.lowering.lower import check, lower

__all__ = ["check", "lower"]
