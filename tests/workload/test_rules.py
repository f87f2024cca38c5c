"""Update rules in a program: what is kept of each parameter, what is gathered, what is computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.search.problem import SearchProblem, unproved
from tests.messages import names
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.lowering import lower
from workload.lowering.updates.table import EMITTED
from workload.op import STEP, Op
from workload.plan_text import parse_plan
from workload.program import Program
from workload.rules.table import NAMES, RULES

GPT_OF_TWO = GPT.of(name="two", layers=2, hidden=32, heads=4, ffn=128, sequence=16, vocab=64)
MATRICES = 2 * (32 * 96 + 32 * 32 + 2 * 32 * 128)  # weights of both layers' linears
TABLES = 64 * 32
SMALL = 16 * 32 + 2 * (4 * 32 + 96 + 32 + 128 + 32) + 2 * 32  # positions, norms, biases


def program_of(text: str, gpt: GPT = GPT_OF_TWO) -> Program:
    return lower(gpt, parse_plan(text))


def held(program: Program, role: str) -> int:
    return sum(b.nbytes for b in program.buffers.values() if b.role == role and b.persistent)


def closing(program: Program, kind: str) -> list[Op]:
    return [op for op in program.ops if op.block == STEP and op.kind == kind]


@pytest.mark.parametrize(
    ("rule", "matrices", "others"),
    [
        ("adamw", 8, 8),
        ("sgd", 0, 0),
        ("sgd-momentum", 4, 4),
        ("muon", 4, 8),
        ("lomo", 0, 0),
        ("mezo", 0, 0),
    ],
)
def test_a_rule_keeps_its_states_of_matrices_and_of_everything_else(
    rule: str, matrices: int, others: int
) -> None:
    assert GPT_OF_TWO.parameters == MATRICES + TABLES + SMALL
    states = matrices * MATRICES + others * (TABLES + SMALL)
    assert held(program_of(f"optimizer={rule},precision=fp32"), "optimizer") == states
    master = 0 if rule in ("lomo", "mezo") else 4 * GPT_OF_TWO.parameters
    assert held(program_of(f"optimizer={rule}"), "optimizer") == states + master


def test_weights_of_matrices_and_tables_decay_and_norms_and_biases_do_not() -> None:
    decays: dict[str, bool] = {}
    for op in closing(program_of("z=2,dp=2"), "adamw"):
        decays |= zip(op.attributes["parameters"], op.attributes["decays"], strict=True)
    of_layer = ("qkv.w", "out.w", "up.w", "down.w")
    matrices = {f"l{layer}.{name}" for layer in range(2) for name in of_layer}
    assert {name for name, decay in decays.items() if decay} == matrices | {"embed.w", "position.w"}
    assert {"norm.w", "norm.b", "l1.norm2.b", "l1.qkv.b"} < set(decays)


def test_lomo_keeps_gradients_of_norms_biases_and_positions_alone() -> None:
    program = program_of("z=2,dp=2,optimizer=lomo")
    assert held(program, "gradients") == 4 * SMALL
    assert held(program_of("z=2,dp=2"), "gradients") == 4 * (SMALL + (MATRICES + TABLES) // 2)
    assert not closing(program, "scale")
    assert program.peak.total_bytes < program_of("z=2,dp=2,optimizer=sgd").peak.total_bytes


def test_lomo_is_refused_with_a_loss_whose_tokens_are_counted_at_the_end() -> None:
    with pytest.raises(PlanCannotRunError, check=names("optimizer=lomo", "goldfish_k")):
        program_of("dp=2,optimizer=lomo", replace(GPT_OF_TWO, goldfish_k=4))


def test_lomo_updates_a_weight_behind_the_last_op_that_reads_it() -> None:
    ops = program_of("dp=2,optimizer=lomo").ops
    for weight in ("l0.qkv.w", "l1.down.w", "embed.w"):
        last = max(at for at, op in enumerate(ops) if weight in op.reads)
        assert (ops[last].kind, ops[last].writes) == ("lomo", (weight,))


def test_muon_s_iterations_are_five_times_three_products_and_no_model_flops() -> None:
    """q, k, v and out are 32 x 32, up and down 32 x 128: 5 (4 s^2 l + 2 s^3) each."""
    plain, program = program_of("batch=2"), program_of("batch=2,optimizer=muon")
    square, long = 5 * 6 * 32**3, 5 * (4 * 32**2 * 128 + 2 * 32**3)
    assert sum(op.flops for op in closing(program, "matmul")) == 2 * (4 * square + 2 * long)
    assert program.model_flops == plain.model_flops
    assert program.hardware_flops - plain.hardware_flops == 2 * (4 * square + 2 * long)
    shared = program_of("tp=2,z=2,dp=2,batch=4,optimizer=muon")
    assert shared.hardware_flops - shared.model_flops == 2 * (4 * square + 2 * long)


def test_muon_gathers_each_matrix_once_over_every_axis_that_splits_it() -> None:
    """In bf16: tiles of a quarter over z, of which two along heads make halves, and two whole."""
    program = program_of("tp=2,y=2,z=2,optimizer=muon,batch=2")
    gathers = [op for op in closing(program, "all_gather") if op.part.is_layer]
    nbytes = {op.axes: 0 for op in gathers}
    for op in gathers:
        nbytes[op.axes] += op.nbytes
    whole = 2 * MATRICES
    assert nbytes == {("z",): whole // 4, ("tp",): whole // 2, ("y",): whole}


def test_queries_keys_and_values_and_gate_and_up_are_matrices_of_their_own() -> None:
    gpt = GPT_OF_TWO.changed(kv_heads=2, activation="swiglu", biases=False)
    merged = closing(program_of("batch=2,optimizer=muon", gpt), "merge_tiles")
    program = program_of("batch=2,optimizer=muon", gpt)
    shapes = [[program.buffers[name].shape for name in op.writes] for op in merged[:4]]
    assert shapes == [
        [(32, 32), (16, 32), (16, 32)],  # the columns of keys are fewer than rows: transposed
        [(32, 32)],
        [(32, 128), (32, 128)],
        [(32, 128)],
    ]


OF_EXPERTS = GPT_OF_TWO.changed(
    biases=False, activation="swiglu", experts=4, topk=2, expert_ffn=16, dense_layers=1
)


@pytest.mark.parametrize(("text", "held"), [("batch=2", 4), ("batch=2,dp=2,ep=2", 2)])
def test_muon_iterates_on_the_stack_of_a_rank_s_experts(text: str, held: int) -> None:
    """Gate and up of an expert are 32 x 16, turned; down is 16 x 32: s = 16 and l = 32 in all."""
    program = program_of(f"{text},optimizer=muon", OF_EXPERTS)
    products = closing(program, "stacked_matmul")
    assert len(products) == 3 * 5 * 3
    assert sum(op.flops for op in products) == held * 3 * 5 * (4 * 16**2 * 32 + 2 * 16**3)
    assert {op.attributes["count"] for op in products} == {held}
    assert program.buffers["l1.experts.up.w.x0.0"].shape == (held, 16, 32)


def test_muon_s_flops_of_experts_are_counted_once_however_they_are_split() -> None:
    """Gate, up and down of the dense layer are 32 x 128, q, k, v and out of both 32 x 32."""
    experts = 4 * 3 * 5 * (4 * 16**2 * 32 + 2 * 16**3)
    long, square = 5 * (4 * 32**2 * 128 + 2 * 32**3), 5 * 6 * 32**3
    rows = "sp=true"
    for text in ("dp=2", "tp=2", "dp=4,ep=2", f"tp=2,dp=2,ep=4,etp=1,{rows}"):
        program = program_of(f"{text},batch=8,optimizer=muon", OF_EXPERTS)
        more = program.hardware_flops - program.model_flops
        assert more == experts + 3 * long + 8 * square
    plan = parse_plan("pp=2,batch=4,mbs=1,schedule=dualpipe,optimizer=muon")
    stages = [lower(OF_EXPERTS, plan, stage) for stage in range(2)]
    more = sum(each.hardware_flops - each.model_flops for each in stages)
    assert more == experts + 3 * long + 8 * square


def test_muon_gathers_experts_over_the_ranks_that_have_parts_of_them_alone() -> None:
    text = "tp=2,dp=4,ep=2,etp=2,zero=1,batch=8,optimizer=muon"
    program = program_of(text, OF_EXPERTS)
    gathers = [op for op in closing(program, "all_gather") if op.label.startswith("muon.experts")]
    tile = 2 * 3 * 32 * 16 // 2 * 2  # bytes of half of each of two experts
    assert [(op.axes, op.nbytes) for op in gathers] == [
        (("edp",), tile),
        (("tp",), 2 * tile),
    ]


def test_muon_gathers_no_weight_over_ranks_that_hold_all_of_it() -> None:
    """Experts with etp=1, and what latent attention compresses: each rank of x has it."""
    latent = OF_EXPERTS.changed(kv_rank=8, rope_width=4, positions="rope")
    text = "tp=2,dp=2,ep=4,etp=1,sp=true,batch=8,optimizer=muon"
    gathers = closing(program_of(text, latent), "all_gather")
    weights = [name for op in gathers for name in op.reads if "tp" in op.axes]
    assert sorted(name.partition(".w")[0] for name in weights) == [
        *("l0.down", "l0.kv_up", "l0.out", "l0.q_up", "l0.up"),
        *("l1.kv_up", "l1.out", "l1.q_up"),
    ]


def test_biases_of_experts_and_routers_are_adamw_s() -> None:
    gpt = replace(OF_EXPERTS, biases=True)
    buffers = program_of("batch=2,optimizer=muon", gpt).buffers
    for name in ("experts.up.b", "router.w", "norm1.w"):
        assert f"l1.{name}.m" in buffers
        assert f"l1.{name}.momentum" not in buffers
    assert "l1.experts.up.w.momentum" in buffers


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("optimizer=lomo,batch=8,mbs=2", ("4", "mbs=8")),
        ("optimizer=lomo,pp=2", ("pp=1", "pp=2")),
        ("optimizer=lomo,dp=2,zero=1", ("zero=1", "zero=0", "3")),
        ("optimizer=lomo,gradients=bf16", ("gradients=bf16",)),
        ("optimizer=lomo,offload=optimizer", ("optimizer=lomo", "offload=optimizer")),
        ("optimizer=sgd,precision=fp32,offload=optimizer", ("precision=fp32",)),
    ],
)
def test_what_a_rule_cannot_do_is_refused_by_name(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        parse_plan(text)


def test_a_rule_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(PlanError, check=names("optimizer=lion", *NAMES)):
        parse_plan("optimizer=lion")


def test_no_bounds_are_known_of_plans_that_a_rule_mostly_refuses() -> None:
    problem = SearchProblem(GPT_OF_TWO, 4, 4, {"optimizer": "lomo"})
    assert "optimizer=lomo" in unproved(problem, load_machine("dgx-h100"))


def test_every_rule_has_a_name_words_and_a_source() -> None:
    assert len(set(NAMES)) == len(RULES)
    assert all(rule.words and rule.source for rule in RULES)
    assert {each.name for rule in RULES for each in (rule.matrices, rule.others)} == {*EMITTED}
