"""The order in which a reference becomes a job, in a world of rates that are easily known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from simulator.explain.waterfall import UNEXPLAINED, Side, waterfall
from simulator.predict import Prediction
from simulator.stacks.stack import EXECUTOR
from tests.simulator.worlds import TINY
from topologies.machine_files import load_machine
from workload.plan import Plan


def by_sequence(side: Side) -> Prediction:
    """As many FLOP/s as a sequence has tokens, for whatever model."""
    return cast("Prediction", SimpleNamespace(model_flops_per_s_per_device=side.gpt.sequence))


def test_another_model_is_no_cause_of_what_its_longer_sequence_does() -> None:
    plan = Plan(dp=8, batch=8, mbs=1)
    reference = Side(TINY, plan, load_machine("dgx-a100"), "dgx-a100", EXECUTOR)
    job = replace(reference, gpt=replace(TINY, name="deep", layers=4, sequence=48))
    falls = waterfall(reference, job, by_sequence, measured=48.0).falls
    assert [(each.words, each.change) for each in falls] == [
        ("model tiny → deep", 0.0),
        ("sequence 16 → 48", 32.0),
        (UNEXPLAINED, 0.0),
    ]
