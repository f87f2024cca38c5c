"""Lowering: from a GPT and a plan to the program of one rank."""

from workload.lowering.divisibility import check
from workload.lowering.evaluation import lower_forward
from workload.lowering.lower import lower, lower_slots
from workload.lowering.relower import expect_many, lower_again, lower_slots_again, structure

__all__ = [
    "check",
    "expect_many",
    "lower",
    "lower_again",
    "lower_forward",
    "lower_slots",
    "lower_slots_again",
    "structure",
]
