"""Steps of rules that compare losses: forward passes alone, and bytes, FLOPs and slots by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.engine.whole_step import step_bytes
from simulator.search.problem import SearchProblem, unproved
from tests.messages import names
from tests.workload.test_rules import GPT_OF_TWO, held
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.lowering import lower, lower_forward
from workload.op import STEP
from workload.plan_text import parse_plan
from workload.program import Program
from workload.rules.fedkseed import CANDIDATES
from workload.stages import samples, stage_slots

BOTH = ("mezo", "fedkseed-step")
ELEMENTS = GPT_OF_TWO.parameters


def program_of(text: str, rule: str, gpt: GPT = GPT_OF_TWO) -> Program:
    return lower(gpt, parse_plan(f"{text},optimizer={rule}"))


def moved(program: Program, kind: str) -> int:
    return sum(op.nbytes for op in program.ops if op.kind == kind)


@pytest.mark.parametrize("rule", BOTH)
def test_a_step_is_two_forward_passes_of_every_micro_batch(rule: str) -> None:
    program = program_of("batch=6,mbs=2", rule)
    plain = lower(GPT_OF_TWO, parse_plan("batch=6,mbs=2"))
    assert program.model_flops == program.hardware_flops == plain.model_flops * 2 / 3
    kinds = Counter(op.kind for op in program.ops)
    assert not [kind for kind in kinds if kind.endswith("_grad") or kind == "accumulate"]
    assert kinds["loss_mean"] == 2 * 3
    read = {op.reads[0] for op in program.ops if op.kind == "embedding"}
    assert read == {f"m{m}.tokens" for m in range(3)}


@pytest.mark.parametrize("text", ["batch=4,mbs=2", "tp=2,z=2,batch=4,precision=fp32"])
def test_mezo_has_the_memory_of_an_evaluation(text: str) -> None:
    """And the sum of the other loss, of 4 bytes."""
    program = program_of(text, "mezo")
    evaluation = lower_forward(GPT_OF_TWO, program.plan)
    assert program.peak.total_bytes == evaluation.peak.total_bytes + 4
    assert held(program, "gradients") == held(program, "optimizer") == 0


@pytest.mark.parametrize(("precision", "item"), [("bf16", 2), ("fp32", 4)])
def test_replicas_with_directions_of_their_own_have_master_copies(
    precision: str, item: int
) -> None:
    program = program_of(f"dp=2,precision={precision}", "fedkseed-step")
    assert held(program, "optimizer") == 4 * ELEMENTS
    assert held(program, "parameters") == item * ELEMENTS
    assert held(program, "gradients") == 0


def test_parameters_are_read_and_written_once_for_each_move_and_each_direction() -> None:
    """In bf16: MeZO moves 2 bytes in place twice and updates them once. Replicas copy masters of 4
    bytes to parameters of 2 twice, move the masters in four directions, and copy them once more."""
    mezo = program_of("dp=4,batch=4", "mezo")
    assert moved(mezo, "perturb") == 2 * (2 + 2) * ELEMENTS
    assert moved(mezo, "zeroth_order_update") == (2 + 2) * ELEMENTS
    apart = program_of("dp=4,batch=4", "fedkseed-step")
    assert moved(apart, "perturb") == 2 * (4 + 2) * ELEMENTS
    assert moved(apart, "zeroth_order_update") == (4 * (4 + 4) + 2) * ELEMENTS


def test_more_replicas_than_candidates_take_as_many_passes_as_there_are_candidates() -> None:
    many = 2 * CANDIDATES
    update = moved(program_of(f"dp={many},batch={many}", "fedkseed-step"), "zeroth_order_update")
    assert update == (CANDIDATES * (4 + 4) + 2) * ELEMENTS


def test_two_losses_are_all_that_ranks_of_data_exchange() -> None:
    """Two numbers of 4 bytes; with a direction each, two for each of four replicas."""
    assert program_of("dp=4,batch=8", "mezo").comm_bytes == {"dp": 8}
    assert program_of("dp=4,batch=8", "fedkseed-step").comm_bytes == {"dp": 4 * 8}
    split = program_of("z=2,dp=4,batch=8", "fedkseed-step").comm_bytes
    assert (split["dp"], program_of("z=2,dp=4,batch=8", "mezo").comm_bytes["z+dp"]) == (32, 8)


def test_a_stage_moves_all_it_has_before_each_pass_and_goes_back_at_the_end() -> None:
    plan = parse_plan("pp=2,batch=2,mbs=1,optimizer=mezo")
    for stage in range(2):
        program = lower(GPT_OF_TWO, plan, stage)
        moves = [op for op in program.ops if op.kind == "perturb"]
        assert [op.attributes["scale"] for op in moves if op.part.layer == stage] == [1.0, -2.0]
        back = [op for op in program.ops if op.kind == "zeroth_order_update"]
        assert all(op.attributes["back"] == op.attributes["eps"] for op in back)
        assert {op.block for op in back} == {STEP}
        for first in (0, 2):
            own = {name for op in moves if op.micro_batch == first for name in op.writes}
            assert own == set(program.layouts)


@pytest.mark.parametrize(("rule", "second"), [("mezo", -2.0), ("fedkseed-step", -1.0)])
def test_the_second_pass_is_as_far_from_the_start_as_the_first(rule: str, second: float) -> None:
    """In place two steps back from where the first one was; from master copies one step back."""
    program = program_of("dp=2,batch=2", rule)
    scales = {
        (op.micro_batch, op.attributes["scale"]) for op in program.ops if op.kind == "perturb"
    }
    assert scales == {(0, 1.0), (1, second)}


def test_the_slots_of_a_pipeline_are_those_of_both_passes_without_a_bubble_between() -> None:
    plan = parse_plan("pp=4,batch=8,mbs=1,optimizer=mezo")
    for stage in range(4):
        words = [f"{slot.work[0]}{slot.micro_batch}" for slot in stage_slots(plan, stage)]
        forward = [f"f{m}" for m in range(16)]
        assert words == ["p0", *forward[:8], "p8", *forward[8:]]
    assert samples(plan) == [0, 1, 7, 8, 9, 15]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("mezo,dp=2,zero=2", ("zero=2", "zero=0", "3")),
        ("mezo,gradients=bf16", ("gradients=bf16", "fp32")),
        ("mezo,offload=optimizer", ("optimizer=mezo", "offload=optimizer")),
        ("mezo,recompute=full:2", ("recompute=full:2",)),
        ("mezo,pp=2,schedule=zb-h1", ("schedule=zb-h1", "1f1b")),
        ("mezo,z=2,reshard=false", ("optimizer=mezo", "reshard=false", "true")),
        ("fedkseed-step,dp=2,zero=3", ("zero=3",)),
        ("fedkseed-step,offload=optimizer", ("optimizer=fedkseed-step", "offload=optimizer")),
    ],
)
def test_what_belongs_to_a_backward_pass_is_refused_by_name(
    text: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        parse_plan(f"optimizer={text}")


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize(
    ("more", "word"), [({"dropout": 0.1}, "dropout"), ({"goldfish_k": 4}, "Goldfish")]
)
def test_a_loss_that_leaves_something_out_is_refused(
    rule: str, more: dict[str, float], word: str
) -> None:
    with pytest.raises(PlanCannotRunError, check=names(f"optimizer={rule}", word)):
        program_of("dp=1", rule, GPT_OF_TWO.changed(**more))


def test_no_bounds_are_known_of_steps_without_backward_passes() -> None:
    problem = SearchProblem(GPT_OF_TWO, 4, 4, {"optimizer": "mezo"})
    assert "optimizer=mezo" in unproved(problem, load_machine("dgx-h100"))


@pytest.mark.parametrize(
    ("size", "rule", "fits"),
    [
        ((48, 7168, 56), "mezo", True),  # OPT-30B
        ((32, 2560, 32), "adamw", True),  # OPT-2.7B
        ((32, 4096, 32), "adamw", False),  # OPT-6.7B, the next one
    ],
)
def test_an_80_gb_device_trains_what_the_authors_of_mezo_say(
    size: tuple[int, int, int], rule: str, fits: bool
) -> None:
    """30 billion parameters by MeZO, 2.7 billion with a backward pass, on one A100 (2305.17333,
    abstract). Sizes: Zhang et al. (OPT, 2205.01068), table 1; a sequence of its longest."""
    layers, hidden, heads = size
    gpt = GPT.of(
        name="opt",
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        sequence=2048,
        vocab=50272,
    )
    assert (step_bytes(gpt, parse_plan(f"optimizer={rule}")) < 80e9) == fits
