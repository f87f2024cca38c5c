"""What a plan does inside a layer, against the plain model: each alone, and in pairs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.executor.test_parity import TINY, check, grids, plan_of
from tests.executor.test_parity_models import TOGETHER
from workload.gpt import GPT
from workload.plan import Plan

LLAMA, BLOOM = TOGETHER["Llama"], TOGETHER["BLOOM"]
RECOMPUTED = ("selective", "full:1", "full")


def every_plan(ranks: int, gpt: GPT) -> Iterator[Plan]:
    """Every grid with every combination of what a plan does inside a layer."""
    for grid in grids(ranks):
        for overlap, micro_batches in itertools.product((False, True), (1, 2)):
            for recompute in ("none", *RECOMPUTED):
                yield plan_of(grid, overlap, recompute, micro_batches)


@pytest.mark.distributed
@pytest.mark.parametrize("gpt", [TINY, LLAMA], ids=["GPT", "Llama"])
@pytest.mark.parametrize("recompute", RECOMPUTED[:2])
def test_partly_recomputed_layers_train_as_the_plain_model_does(gpt: GPT, recompute: str) -> None:
    check(
        4,
        gpt,
        [plan_of((1, 2, 2, 1), True, recompute, 2), plan_of((2, 1, 1, 2), False, recompute, 1)],
    )
