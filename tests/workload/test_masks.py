"""Dispatch by dense masks over places of experts: counted by hand, and refused where wrong."""

from __future__ import annotations

import pytest

from tests.messages import names
from tests.workload.test_experts import ROWS, TWO, of_layer, program_of
from workload.errors import PlanCannotRunError
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import BY_MASKS
from workload.plan_text import parse_plan

PLACED = TWO.changed(capacity=1.25)
PLACES = 8 * 10  # 8 experts, ceil(1.25 x 32 tokens x 2 / 8) places each
PLAN = "dp=4,ep=4,dispatcher=dense"


def test_padded_rows_for_all_places_are_sent_in_equal_parts() -> None:
    program = program_of(PLAN, PLACED)
    sent = of_layer(program, "dispatch.exchange")
    assert (sent.kind, sent.nbytes) == ("all_to_all", PLACES * 32 * 2)
    assert of_layer(program, "combine.exchange").nbytes == sent.nbytes
    assert "dispatch.counts.exchange" not in {op.label for op in program.ops}


def test_five_products_with_masks_are_work_beyond_the_models() -> None:
    program, usual = program_of(PLAN, PLACED), program_of("dp=4,ep=4", PLACED)
    own = [op for op in program.ops if op.purpose == BY_MASKS and op.part.layer == 1]
    assert [op.flops for op in own] == [2 * ROWS * PLACES * 32] * 5
    assert program.model_flops == usual.model_flops


def test_masks_of_tokens_by_places_are_kept_for_the_backward_pass() -> None:
    """8 bytes for each of T x P in bf16, and the rows that came back; scores' rows are not."""
    program = program_of(PLAN, PLACED)
    kept = {"dispatch.ones.o": 4, "dispatch.mask.o": 2, "combine.weights.cast.o": 2}
    for name, item in kept.items():
        assert program.buffers[f"m0.l1.{name}"].nbytes == item * ROWS * PLACES
    assert program.buffers["m0.l1.dispatch.one_hot"].nbytes == 8 * ROWS * PLACES
    reads = {name for op in program.ops if ".grad" in op.label for name in op.reads}
    assert {f"m0.l1.{name}" for name in (*kept, "combine.arrived")} <= reads


def test_memory_grows_with_the_square_of_the_tokens_and_without_masks_with_them() -> None:
    """Of two layers: 8 bytes for each of 64 x 160 masked elements in place of 32 x 80."""

    def held(micro_batch: int, plan: str) -> int:
        text = f"mbs={micro_batch},batch={4 * micro_batch},overlap=none,{plan}"
        return lower(PLACED, parse_plan(text)).peak.total_bytes

    usual, masked = "dp=4,ep=4", PLAN
    more = [held(n, masked) - held(n, usual) for n in (2, 4, 8)]
    assert more[1] > 2.5 * more[0]
    assert more[2] > 3 * more[1]


def test_sparse_kernels_keep_the_rows_that_came_back_and_no_masks() -> None:
    program = program_of("dp=4,ep=4,dispatcher=sparse", PLACED)
    found = of_layer(program, "combine.scores.grad")
    assert "m0.l1.combine.arrived" in found.reads
    assert program.buffers["m0.l1.combine.arrived"].nbytes == PLACES * 32 * 2
    assert not [op for op in program.ops if op.purpose == BY_MASKS]
    assert of_layer(program, "dispatch.exchange").nbytes == PLACES * 32 * 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [({}, ("two", "capacity=0", "capacity")), ({"capacity": 1.0, "biases": True}, ("biases",))],
)
def test_a_model_without_places_takes_no_masks(
    fields: dict[str, object], named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanCannotRunError, check=names("dispatcher=dense", *named)):
        program_of(PLAN, TWO.changed(**fields))


def test_a_model_without_experts_takes_no_dispatcher() -> None:
    with pytest.raises(PlanCannotRunError, check=names("dispatcher=dense", "experts")):
        lower(find_model("tiny-30k"), parse_plan("dispatcher=dense"))
