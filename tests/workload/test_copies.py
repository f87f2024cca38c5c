"""Copies and casts around ops, by hand: easy mode's of AxoNN."""

from __future__ import annotations

from simulator.stacks import load_stack
from topologies.machine_files import load_machine
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import COMPUTE, WEIGHT_GATHER, Op
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.program import Program

ROWS, WIDTH, LAYERS = 64, 128, 2
GPT_OF_TWO = GPT.of(
    name="two", layers=LAYERS, hidden=WIDTH, heads=4, ffn=4 * WIDTH, sequence=32, vocab=128,
    tied=False,
)  # fmt: skip
PLAN = Plan.of(
    z=2, batch=4, mbs=2, recompute="full", overlap=()
)  # two sequences of 32 on each rank
STREAM = ROWS * WIDTH  # elements of the residual stream
WEIGHTS = 12 * WIDTH * WIDTH  # of a layer's four linears


def of_axonn() -> StackBehaviour:
    stack = load_stack("axonn-easy")
    return stack.kernels(GPT_OF_TWO, PLAN, load_machine("frontier")).behaviour


def copies_in(program: Program, phase: str) -> list[Op]:
    """The copies of the layers in one phase."""
    every = [op for op in program.ops if op.kind == "copies" and op.part.is_layer]
    return [op for op in every if op.block.phase == phase]


def total(ops: list[Op], *, of_weights: bool) -> int:
    chosen = [op for op in ops if op.label.endswith(".gather.copies") is of_weights]
    return sum(op.nbytes for op in chosen)


def test_copies_are_an_op_s_elements_times_what_a_stack_says_and_run_behind_it() -> None:
    found = lower(GPT_OF_TWO, PLAN, behaviour=StackBehaviour(copies=(("up.matmul", (3, 5)),)))
    ops = {op.name: at for at, op in enumerate(found.ops)}
    at = ops["m0.l0.up.matmul.copies"]
    assert found.ops[at].nbytes == (3 + 4 * 5) * STREAM
    assert found.ops[at - 1].name == "m0.l0.up.matmul"
    assert len(found.ops) == len(lower(GPT_OF_TWO, PLAN).ops) + 2 * LAYERS  # and recomputing


def test_what_is_said_of_a_phase_or_a_label_comes_before_what_is_said_of_all() -> None:
    rates = (("matmul", (1, 0)), ("out.matmul", (2, 0)), ("recompute.matmul", (3, 0)))
    found = lower(GPT_OF_TWO, PLAN, behaviour=StackBehaviour(copies=rates))
    nbytes = {op.name: op.nbytes for op in found.ops if op.kind == "copies"}
    assert nbytes["m0.l0.qkv.matmul.copies"] == STREAM
    assert nbytes["m0.l0.out.matmul.copies"] == 2 * STREAM
    assert nbytes["m0.l0.re.qkv.matmul.copies"] == 3 * STREAM
    assert nbytes["m0.l0.re.out.matmul.copies"] == 2 * STREAM


def test_easy_mode_copies_a_layer_s_rows_and_weights_as_often_as_its_code_does() -> None:
    """Forward, in bytes for an element of the stream: 80 around the linear of queries, keys and
    values, 22 around attention, 30, 94 and 166 around the other three linears, 392; backward 134,
    116, 30, 42 and 94 from the last to the first, 416. Of a weight 6 bytes an element forward, and
    22 each time that its gather is awaited at once."""
    found = lower(GPT_OF_TWO, PLAN, behaviour=of_axonn())
    phases = ("forward", "recompute", "backward")
    rows, weights = (
        [total(copies_in(found, phase), of_weights=chosen) for phase in phases]
        for chosen in (False, True)
    )
    assert rows == [LAYERS * STREAM * each for each in (392, 392, 416)]
    assert weights == [LAYERS * WEIGHTS * each for each in (6, 2 * 22, 0)]


def test_the_forward_pass_alone_gathers_ahead_and_its_casts_do_not_wait_early() -> None:
    found = lower(GPT_OF_TWO, PLAN, behaviour=of_axonn())
    gathers = [op for op in found.ops if op.purpose == WEIGHT_GATHER and op.part.is_layer]
    streams = {phase: {op.stream for op in gathers if op.block.phase == phase}
               for phase in ("forward", "recompute")}  # fmt: skip
    assert streams == {"forward": {"z"}, "recompute": {COMPUTE}}
    order = {op.name: at for at, op in enumerate(found.ops)}
    casts = order["m0.l1.up.gather.copies"]
    assert order["m0.l1.up.gather"] < order["m0.l1.out.matmul"] < casts
    assert found.ops[casts + 1].name == "m0.l1.up.matmul"
