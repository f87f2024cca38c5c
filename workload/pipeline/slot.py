"""The slots that schedules consist of."""

from __future__ import annotations

from topologies.records import record

FORWARD, BACKWARD, INPUT, WEIGHT = "forward", "backward", "input", "weight"
PERTURB = "perturb"
SILENT = (WEIGHT, PERTURB)  # works of slots that neither receive nor send


@record
class Slot:
    """One entry of a schedule: a pass of one micro-batch through one chunk of the stage.

    `work` is "forward" or "backward", or where a schedule splits the latter "input" (gradients of
    activations) and "weight" (gradients of weights). In a step without backward passes, "perturb"
    moves the stage's parameters before a pass over the batch, and the micro-batches of that pass
    are numbered on from those of the pass before.
    """

    work: str
    chunk: int
    micro_batch: int
