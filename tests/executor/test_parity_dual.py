"""DualPipe, with two copies of the model: same losses and weights as the plain model's, float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.executor.test_parity import BATCH, check
from tests.executor.test_parity_experts import DEEPSEEK
from tests.executor.test_parity_pipe import DEEP
from workload.gpt import find_model
from workload.passes.table import OVERLAPS
from workload.plan import Plan


def both_ways(micro_batches: int, **keys: Any) -> Plan:
    """A plan with so many micro-batches in each direction."""
    cells = 2 * keys.get("z", 1) * keys.get("data", 1)
    usual = {"overlap": OVERLAPS, "precision": "fp64", "schedule": "dualpipe"}
    size = BATCH // (cells * micro_batches)
    return Plan(**{"batch": BATCH, "micro_batch": size, **usual, **keys})


@pytest.mark.distributed
def test_two_copies_train_as_the_plain_model_does() -> None:
    check(2, DEEP, [both_ways(4, pipe=2)])
    plans = [
        both_ways(8, pipe=4),
        both_ways(4, pipe=4, stage_layers=(1, 0, 4, 3), recompute="full", overlap=()),
        both_ways(2, pipe=2, data=2, zero=1),
    ]
    check(4, DEEP, plans)
    check(4, replace(DEEPSEEK, layers=4), [both_ways(2, pipe=2, data=2, expert=2)])


@pytest.mark.slow
@pytest.mark.distributed
def test_they_do_so_with_every_other_split() -> None:
    plans = [
        both_ways(2, pipe=2, data=2, zero=zero, overlap=overlap)
        for zero in range(4)
        for overlap in ((), OVERLAPS)
    ]
    plans += [
        both_ways(4, pipe=2, z=2, zero=1),
        both_ways(4, pipe=2, x=2, sequence_parallel=True),
        both_ways(4, pipe=2, y=2),
        both_ways(4, pipe=2, context=2),
        both_ways(4, pipe=2, data=2, order="pipe-x-y-z-data"),
    ]
    check(4, DEEP, plans)
    llama = replace(find_model("tiny-llama-40k"), layers=4)
    check(4, llama, [both_ways(4, pipe=4), both_ways(4, pipe=2, data=2)])
    check(8, DEEP, [both_ways(8, pipe=8), both_ways(4, pipe=4, data=2, zero=2)])
