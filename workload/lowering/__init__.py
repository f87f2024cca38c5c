"""Lowering: from a GPT and a plan to the program of one rank."""

from workload.lowering.divisibility import check
from workload.lowering.evaluation import lower_forward
from workload.lowering.lower import lower, lower_slots, lower_stages

__all__ = [
    "check",
    "lower",
    "lower_forward",
    "lower_slots",
    "lower_stages",
]
