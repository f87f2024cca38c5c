"""Lower bounds of memory: of made-up sizes by hand, and of plans that drawn ones seldom are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.search.bounds.batched_programs import sized
from simulator.search.bounds.in_flight import entry_bytes
from simulator.search.bounds.layouts import layouts_of
from simulator.search.bounds.peak_memory import (
    alone_bytes,
    bytes_of_layouts,
    device_bytes,
    pipeline_bytes,
    plan_bytes,
)
from simulator.search.orders import overlaps
from simulator.search.problem import SearchProblem
from simulator.search.root_nodes import entries_of, least_bytes_of
from simulator.search.space import Order, space_of
from workload.gpt import GPT
from workload.sizes.arrays import Bytes, Counts

HELD = {"layer": 5, "dense": 5, "experts": 7, "embed": 20, "head": 30}
TWO_LAYERS = GPT.of(
    name="two",
    layers=2,
    hidden=64,
    heads=4,
    ffn=128,
    sequence=256,
    vocab=5000,
    tied=False,
    biases=False,
)
EXPERTS: dict[str, Any] = {"experts": 4, "topk": 2, "expert_ffn": 32, "activation": "swiglu"}
FEW_EXPERTS = TWO_LAYERS.changed(layers=16, dense_layers=3, **EXPERTS)


def counts(*numbers: int) -> Counts:
    return np.array(numbers, dtype=np.int64)


def held(**others: int) -> dict[str, Bytes]:
    """What each part holds, of any plan."""
    return {name: counts(nbytes) for name, nbytes in (HELD | others).items()}


@pytest.mark.parametrize(
    ("pp", "micro_batches", "least"),
    [
        (8, 2, 10 + 20 + 2 * 2 * 200),  # both are in flight, not one for each stage
        (8, 1, 10 + 20 + 1 * 2 * 200),
        (8, 64, 10 + 20 + 8 * 2 * 200),
        (1, 64, 80 + 20 + 1 * 16 * 200),
        (2, 64, 40 + 20 + 2 * 8 * 200),
    ],
)
def test_a_first_stage_holds_no_more_micro_batches_than_there_are(
    pp: int, micro_batches: int, least: int
) -> None:
    """Of 16 layers each stage has its part, 5 bytes each; the first holds the embedding's 20, and
    of each layer 200 for a micro-batch in flight."""
    found = device_bytes(held(), counts(200), counts(pp), counts(micro_batches), 16)
    assert found.tolist() == [least]


def test_without_much_in_flight_the_last_stage_or_both_ends_hold_most() -> None:
    """On two stages 8 layers and the head of 30, on one all 16 and both ends."""
    found = device_bytes(held(), counts(0, 0), counts(2, 1), counts(2, 2), 16)
    assert found.tolist() == [8 * 5 + 30, 16 * 5 + 20 + 30]


@pytest.mark.parametrize(
    ("pp", "micro_batches", "least"),
    [
        (8, 2, 20 + 10 + 2 * 2 * 200),
        (8, 64, 20 + 10 + 8 * 2 * 200),
        (2, 64, 20 + 3 * 5 + 5 * 7 + 2 * (3 * 200 + 5 * 100)),
    ],
)
def test_so_does_one_of_a_model_with_layers_of_two_kinds(
    pp: int, micro_batches: int, least: int
) -> None:
    """Of 16 layers the first three have no experts: 5 bytes each, and 200 in flight; the others,
    7 and 100."""
    layouts = layouts_of(FEW_EXPERTS, [(pp, 1)])
    assert layouts is not None
    saved = {"dense": counts(200), "experts": counts(100)}
    found = bytes_of_layouts(held(), saved, counts(pp), counts(micro_batches), layouts)
    assert found.tolist() == [least]


def test_of_two_kinds_the_fullest_stage_or_the_last_may_hold_most() -> None:
    """With nothing in flight: on eight stages two layers with experts and the head."""
    layouts = layouts_of(FEW_EXPERTS, [(8, 1)])
    assert layouts is not None
    none = {"dense": counts(0), "experts": counts(0)}
    for head, least in ((30, 2 * 7 + 30), (0, 20 + 10)):
        found = bytes_of_layouts(held(head=head), none, counts(8), counts(2), layouts)
        assert found.tolist() == [least]
    found = bytes_of_layouts(held(head=0, embed=0), none, counts(8), counts(2), layouts)
    assert found.tolist() == [2 * 7]


def problem_of(**fixed: Any) -> SearchProblem:
    """Four sequences of two layers, on one device for each stage: one plan but for its overlaps."""
    shape = {"tp": 1, "y": 1, "z": 1, "dp": 1, "pp": 1, "mbs": 1, "vpp": 1}
    order = {"recompute": "none", "schedule": "1f1b", "zero": 0, "sp": False}
    own = {**shape, **order, **fixed}
    return SearchProblem(TWO_LAYERS, own["pp"], 4, own)


def bounds(problem: SearchProblem, overlap: tuple[str, ...], schedule: str) -> tuple[int, int]:
    """The bound of any order, and that of this one."""
    space, rows = space_of(problem), np.zeros(1, dtype=np.int64)
    (entries,) = entries_of(space, rows)
    some = next(sized(space, rows))
    if problem.fixed["pp"] > 1:
        own = entry_bytes(space, some, entries)
    else:
        own = alone_bytes(next(sized(space, rows, overlap=overlap, schedule=schedule)), problem.gpt)
    return int(least_bytes_of(space, some)[0]), int(own[0])


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("offload", ["none", "optimizer", "update"])
def test_what_the_host_holds_is_no_part_of_a_bound(offload: str, pp: int) -> None:
    """Of P parameters a device without a pipeline has 2 bytes and 4 of gradients; the host 12 of
    AdamW's, without which the bound is so much lower."""
    problem = problem_of(offload=offload, pp=pp)
    least, own = bounds(problem, (), "1f1b")
    plan = space_of(problem).plan(0, Order("1f1b", 1, ()))
    assert max(least, own) <= plan_bytes(problem.gpt, plan)
    if pp == 1:
        moved = 0 if offload == "none" else 12 * problem.gpt.parameters
        assert bounds(problem_of(), (), "1f1b") == (least + moved, own + moved)


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-2p"])
@pytest.mark.parametrize("loss", [{"loss_chunks": 4}, {"loss_chunks": 2, "loss": "fused"}, {}])
def test_what_a_loss_in_chunks_sums_for_the_classifier_does_not_wait(
    loss: dict[str, Any], schedule: str
) -> None:
    """It sums gradients of the table in the forward pass, chunk by chunk, so a schedule that puts
    those of weights off keeps no logits for them: 2.6 MB for each of two micro-batches, of 9.9."""
    problem = problem_of(pp=2, schedule=schedule, **loss)
    least, in_flight = bounds(problem, (), schedule)
    for overlap in overlaps(problem, space_of(problem).shape(0)):
        peak = pipeline_bytes(problem.gpt, space_of(problem).plan(0, Order(schedule, 1, overlap)))
        assert max(least, in_flight) <= peak < 2 * in_flight
