"""Sequences split over `context`, against the plain model: losses and weights, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.examples import one_in
from tests.executor.covering import MODELS, OPTIONS, Case, case
from tests.executor.test_parity_layer import check
from workload.splits.plan_values import CHOICES

PLAIN = {name: values[0] for name, values in OPTIONS.items()}
KINDS = CHOICES["context_kind"]
FOUR: tuple[dict[str, Any], ...] = (
    {"cp": 4, "recompute": "full", "micro_batches": 2},
    {"cp": 2, "tp": 2, "sp": True, "recompute": "selective"},
    {"cp": 2, "dp": 2, "zero": 3, "reshard": False},
    {"cp": 2, "z": 2, "zero": 1, "micro_batches": 2},
    {"cp": 2, "pp": 2, "schedule": "zb-h1", "micro_batches": 2, "dropout": 0.1},
    {"cp": 2, "y": 2, "overlap": ()},
)
EIGHT: tuple[dict[str, Any], ...] = (
    {"cp": 2, "z": 2, "dp": 2, "zero": 2, "micro_batches": 2},
    {"cp": 2, "dp": 4, "zero": 3, "shard": 2},
    {"cp": 2, "tp": 2, "z": 2, "zero": 3, "sp": True},
    {"cp": 4, "pp": 2, "vpp": 2, "micro_batches": 2, "recompute": "full:1"},
    {"cp": 8, "dropout": 0.1},
    {"cp": 4, "y": 2, "recompute": "selective", "offload": "optimizer", "zero": 1},
)


BOTH: tuple[dict[str, Any], ...] = (
    {"cp": 4, "context_heads": 2, "micro_batches": 2, "recompute": "selective"},
    {"cp": 4, "context_heads": 2, "zero": 3, "dropout": 0.1},
)
BOTH_ON_EIGHT: tuple[dict[str, Any], ...] = (
    {"cp": 8, "context_heads": 2, "dropout": 0.1, "recompute": "full"},
    {"cp": 4, "context_heads": 2, "dp": 2, "zero": 2, "overlap": ()},
    {"cp": 4, "context_heads": 2, "tp": 2, "sp": True},
    {"cp": 4, "context_heads": 2, "pp": 2, "schedule": "zb-h1", "micro_batches": 2},
)


def cases(rows: tuple[dict[str, Any], ...], kind: str, first: int = 0) -> list[Case]:
    """The plans of some rows, each with the next model."""
    models = [*MODELS]
    return [
        case(PLAIN | {"context_kind": kind, "model": models[(first + at) % len(models)]} | row)
        for at, row in enumerate(rows)
    ]


def in_one_layer(cases: list[Case]) -> list[Case]:
    """Cases whose model has but one layer."""
    return [(replace(gpt, layers=1), plan) for gpt, plan in cases]


def both(rows: tuple[dict[str, Any], ...], first: int) -> list[Case]:
    """Cases in which some neighbours trade heads before the ring; those that cannot are left out
    by their keys' heads."""
    plain = [{k: v for k, v in row.items() if k != "context_heads"} for row in rows]
    found = zip(cases(tuple(plain), "ring", first), rows, strict=True)
    return [
        (gpt.changed(kv_heads=0), plan.changed(context_heads=row["context_heads"]))
        for (gpt, plan), row in found
    ]


@pytest.mark.distributed
def test_heads_traded_among_neighbours_before_a_ring_train_as_the_plain_model_does() -> None:
    check(4, in_one_layer(both(BOTH[:1], 0)))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_heads_traded_before_a_ring_meet_every_other_axis() -> None:
    check(4, both(BOTH, 0))
    check(4, both(BOTH, 2))
    check(8, [each for first in range(2) for each in both(BOTH_ON_EIGHT, first)])


@pytest.mark.distributed
@pytest.mark.parametrize("kind", one_in(2, KINDS))
def test_two_ranks_train_as_the_plain_model_does(kind: str) -> None:
    """Of Qwen, with dropout; GPT, Llama and BLOOM are in the slow set below."""
    row = {"cp": 2, "recompute": "selective", "dropout": 0.1}
    check(2, in_one_layer(cases((row,), kind, first=3)))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_each_model_as_the_plain_one_does(kind: str) -> None:
    check(2, cases(({"cp": 2, "recompute": "selective"},) * len(MODELS), kind))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "rows"), [(4, FOUR), (8, EIGHT)])
def test_context_meets_every_other_axis(
    ranks: int, rows: tuple[dict[str, Any], ...], kind: str
) -> None:
    check(ranks, [each for first in range(2) for each in cases(rows, kind, first)])
