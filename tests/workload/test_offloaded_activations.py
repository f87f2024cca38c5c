"""Activations in the host's memory: what goes there and back, when, and what waits for it."""

from __future__ import annotations

import pytest

from simulator.search.problem import SearchProblem, unproved
from topologies.machine_files import load_machine
from workload.errors import PlanError
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import HOST, Op, layer_part
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

GIVEN = GPT.of(
    name="given",
    layers=6,
    hidden=32,
    heads=4,
    ffn=256,
    sequence=16,
    vocab=64,
    positions="rope",
    norm="rmsnorm",
    activation="swiglu",
    biases=False,
)
ROWS = 2 * 16
INPUT = 2 * ROWS * 32  # of a layer, in bf16
# Input, its norm, queries with keys and values, context, the sum behind, its norm, gate with up,
# their product; and in fp32 two norms' statistics and the logarithms of four heads' sums.
SAVED = 2 * ROWS * (32 + 32 + 96 + 32 + 32 + 32 + 512 + 256) + 4 * ROWS * (1 + 1 + 4)


def plan_of(words: str) -> Plan:
    return parse_plan(f"mbs=2,offload=activations,{words}", batch=4)


def copies(program: Program, kind: str) -> list[Op]:
    return [op for op in program.ops if op.kind == kind and op.micro_batch == 0]


@pytest.mark.parametrize(("recompute", "nbytes"), [("full", INPUT), ("none", SAVED)])
def test_all_layers_but_the_last_copy_what_their_backward_pass_reads(
    recompute: str, nbytes: int
) -> None:
    program = lower(GIVEN, plan_of(f"recompute={recompute}"))
    for kind in ("to_host", "to_device"):
        found = copies(program, kind)
        assert {op.part for op in found} == {*map(layer_part, range(5))}
        assert [op.nbytes for op in found] == [nbytes] * 5
    most = max(use.parts[HOST] for use in program.memory)
    assert most == 5 * nbytes


def test_a_layer_comes_back_beside_the_backward_pass_of_the_one_behind_it() -> None:
    program = lower(GIVEN, plan_of("recompute=full"))
    blocks = [op.block for op in program.ops]
    for op in copies(program, "to_device"):
        at = program.ops.index(op)
        assert blocks[at + 1].part == layer_part(op.part.layer + 1)
        assert op.block.is_recomputed
    for op in copies(program, "to_host"):
        fence = next(each for each in program.ops if each.reads == (op.writes[-1],))
        assert fence.part == layer_part(op.part.layer + 1)
        gone = next(n for n, names in enumerate(program.releases) if op.reads[0] in names)
        assert gone == program.ops.index(fence)


def test_the_device_holds_two_layers_activations_at_most_before_the_loss() -> None:
    def before_the_loss(offload: str) -> int:
        program = lower(GIVEN, plan_of("recompute=none").changed(offload=offload))
        at = next(n for n, op in enumerate(program.ops) if op.label == "loss.cast")
        return program.memory[at].parts["activations"]

    assert before_the_loss("none") - before_the_loss("activations") == 5 * SAVED


@pytest.mark.parametrize(
    "words", ["pp=2,dp=1", "overlap=all+wgrad", "optimizer=mezo", "pp=2,schedule=gpipe"]
)
def test_what_has_no_two_passes_on_one_device_is_refused(words: str) -> None:
    with pytest.raises(PlanError, match="offload=activations"):
        plan_of(words)


def test_a_search_knows_no_bounds_of_it() -> None:
    problem = SearchProblem(GIVEN, devices=2, batch=4, fixed={"offload": "activations"})
    assert "offload=activations" in unproved(problem, load_machine("dgx-h100"))
