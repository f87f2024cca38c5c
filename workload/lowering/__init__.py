"""Lowering: from a GPT and a plan to the program of one rank."""

from workload.lowering.again import lower_again, lower_slots_again, structure
from workload.lowering.check import check
from workload.lowering.lower import lower, lower_slots

__all__ = ["check", "lower", "lower_again", "lower_slots", "lower_slots_again", "structure"]
