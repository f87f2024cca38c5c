"""How long one training step of a GPT takes on a machine, what limits it, and the same step run.

>>> import simgpt
>>> result = simgpt.predict("gpt-5b", "frontier", "z=16,data=rest", devices=512, batch=512)
>>> result.memory.fits
True
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from topologies.session import Session

if TYPE_CHECKING:
    from simulator.predict import Prediction

__all__ = ["Session", "predict"]


def predict(
    model: str,
    machine: str,
    plan: str,
    *,
    devices: int | None = None,
    batch: int | None = None,
    stack: str = "simgpt",
) -> Prediction:
    """Predict one training step of a model on a machine under a plan, all given as on the CLI.

    `devices` fills `data=rest`; `batch` counts sequences per step; `stack` is the software that
    trains. Ranks are placed as a scheduler would place them. What a model's description leaves open
    or says beyond the model is a UserWarning. Within `with simgpt.Session():` predictions share
    what they have in common.
    """
    from simulator.predict import predict as predict_step
    from simulator.stacks import load_stack
    from simulator.stacks.job import job_of
    from topologies.machine_files import load_machine
    from topologies.placement import scheduler, with_room
    from workload.models.read import described_model

    described = described_model(model)
    for note in described.notes_on(described.gpt, ()):
        warnings.warn(note, stacklevel=2)
    job = job_of(described.gpt, plan, load_stack(stack), devices=devices, batch=batch)
    ranks = job.plan.grid.ranks
    built = with_room(load_machine(machine), ranks)
    placement = scheduler(built, ranks)
    return predict_step(job.gpt, job.plan, built, placement=placement, stack=job.stack)
