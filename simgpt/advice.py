"""What to change about a plan that does not fit into a device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simgpt import tables

if TYPE_CHECKING:
    from simulator.prediction import Prediction
    from simulator.search import Question, State
    from topologies.machine import Machine


def does_not_fit(prediction: Prediction) -> str:
    """By how much a plan misses the device's memory, and what would help."""
    memory = prediction.memory
    over = memory.peak_bytes - memory.capacity_bytes
    advice = []
    if prediction.plan.recompute == "none" and memory.parts["activations"] > over:
        advice.append("recompute=full")
    if prediction.plan.micro_batch > 1:
        advice.append(f"micro_batch={prediction.plan.micro_batch // 2 or 1}")
    if prediction.plan.data > 1 and prediction.plan.zero < 3:
        advice.append(f"zero={prediction.plan.zero + 1}")
    advice.append("a larger z (weights and optimizer state are split over x, y and z)")
    return f"does not fit by {tables.gib(over)} per device; try {', or '.join(advice)}"


def none_fits(question: Question, machine: Machine, state: State) -> str:
    """By how much every plan misses the device's memory, and how many devices may be enough."""
    from simulator.search.first import enough_devices

    over = state.least_bytes - int(machine.device.memory_bytes)
    if over <= 0:
        return ""
    devices = enough_devices(question, machine)
    on = "" if devices is None else f"; on {devices:,} devices one may fit"
    return f", each misses the device's memory by {tables.gib(over)} or more{on}"
