"""Where two features meet: FLOPs, bytes sent, host time and memory of a small model, by hand.

Letters: a model of L = 2 layers has h = 64 columns, 8 heads, s = 128 tokens, V = 512 words and an
MLP of f = 96; of experts there are E = 8, k = 2 for each token, e = 32 wide. All else follows from
the papers that the modules of `workload` name, not from their code. Each table has pairs of which
one could forget the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from simulator.costs.analytic import AnalyticCosts
from simulator.costs.kernels import Kernels
from tests.examples import one_in
from topologies.machine_files import load_machine
from workload.gpt import GPT
from workload.kinds import ATTENTIONS
from workload.lowering import lower
from workload.plan_text import parse_plan
from workload.program import Program

L, h, s, V, f, E, k, e = 2, 64, 128, 512, 96, 8, 2, 32
DENSE = GPT.of(
    name="dense",
    layers=L,
    hidden=h,
    heads=8,
    ffn=f,
    sequence=s,
    vocab=V,
    activation="swiglu",
    biases=False,
    norm="rmsnorm",
    positions="rope",
    tied=False,
)
MIXTURE = DENSE.changed(name="mixture", experts=E, topk=k, expert_ffn=e)
PLACES = MIXTURE.changed(capacity=1.0)
WINDOW = DENSE.changed(name="window", window=32)
PACKED = DENSE.changed(name="packed", documents="64+2x32")
LATENT = DENSE.changed(
    name="latent", head_width=8, q_rank=16, kv_rank=24, rope_width=8, value_width=8
)
FURTHER = DENSE.changed(name="further", mtp_layers=1)
DEEP = replace(DENSE, name="deep", layers=4)
MIXED = MIXTURE.changed(mtp_layers=1)
HYBRID = DENSE.changed(
    name="hybrid",
    layers=4,
    pattern="M*-M",
    ssm_heads=8,
    ssm_width=16,
    ssm_state=12,
    ssm_groups=4,
    ssm_chunk=32,
)

ATTENTION, MLP, EXPERT = 4 * h * h, 3 * h * f, 3 * h * e  # elements of a layer's matrices
TABLES, NORMS = 2 * V * h, (2 * L + 1) * h
MATRICES = L * (ATTENTION + MLP)
P = MATRICES + TABLES + NORMS
ROW = 2 * h  # bytes of a token's row
MICRO_BATCHES = 2
# A layer of Mamba-2: columns in (z, x, B, C and dt) and out of 8 heads 16 wide, 4 groups of 12.
SSM_IN, SSM_OUT = 2 * 128 + 2 * 48 + 8, 128


def shown(value: object) -> str | None:
    """A parameter's part in the name of a test."""
    return value.name if isinstance(value, GPT) else None


def micro_batches(words: str) -> int:
    """How many a plan has: two, or as many as DualPipe needs on two stages."""
    return 4 if "dualpipe" in words else MICRO_BATCHES


@cache
def programs(gpt: GPT, words: str, count: int = 0) -> tuple[Program, ...]:
    """Those of all stages of a plan."""
    plan = parse_plan(f"{words},mbs=1", batch=64)
    plan = plan.with_micro_batches(count or micro_batches(words))
    return tuple(lower(gpt, plan, stage) for stage in range(plan.pp))


SPLITS = (
    *("cp=4", "cp=4,context_kind=all_gather", "cp=4,recompute=full,zero=3"),
    *("cp=2,dp=2,zero=3", "pp=2,cp=2", "pp=2,schedule=zb-h1,recompute=full"),
    *("tp=2,sp=true,cp=2", "recipe=mxfp8,cp=2,recompute=full"),
    *("optimizer=muon,dp=2,zero=1,pp=2", "offload=update,dp=2,zero=2,cp=2"),
)
OF_HEADS = ("cp=4,context_kind=ulysses", "cp=4,context_heads=2")
OF_EXPERTS = (
    "cp=2,ep=2",
    "cp=2,context_kind=all_gather,dp=2,ep=4,dispatcher=all_gather",
    "dp=2,ep=2,overlap=a2a+wgrad",
    "dp=2,ep=2,dispatcher=hierarchical,zero=3,recompute=full",
    "dp=2,ep=2,dispatcher=once_per_node,recipe=nvfp4",
    "dp=2,ep=2,recipe=mxfp8,fp8_dispatch=true,pp=2,schedule=zb-h1",
    "tp=2,dp=2,ep=2,sp=true,etp=1",
)
OF_CHUNKS = ("pp=2,vpp=2", "pp=2,vpp=2,schedule=dualpipe-v,recompute=full")


def of_models() -> Iterator[tuple[GPT, str, int]]:
    """Models on plans, with the FLOPs of a sequence's step: three times those of the products of
    the forward pass, of which scores count every key of a query's window or document."""
    square, every = s * s, MATRICES + V * h
    dense = 6 * s * every + 12 * L * square * h
    yield from ((DENSE, words, dense) for words in (*SPLITS, *OF_HEADS))
    deep = 6 * s * (2 * MATRICES + V * h) + 24 * L * square * h
    yield from ((DEEP, words, deep) for words in OF_CHUNKS)
    of_experts = 6 * s * (L * (ATTENTION + h * E + k * EXPERT) + V * h) + 12 * L * square * h
    yield from ((MIXTURE, words, of_experts) for words in OF_EXPERTS)
    for gpt, pairs in ((WINDOW, s * 32), (PACKED, 64 * 64 + 2 * 32 * 32)):
        limited = 6 * s * every + 12 * L * pairs * h
        yield from ((gpt, words, limited) for words in (*SPLITS[:5], OF_HEADS[0]))
    latent = h * 16 + 16 * 8 * 16 + h * (24 + 8) + 24 * 8 * (8 + 8) + 64 * h  # heads 8 + 8 wide
    own = 6 * s * (L * (latent + MLP) + V * h) + 6 * L * square * 8 * (16 + 8)
    yield from ((LATENT, words, own) for words in (*SPLITS[:4], OF_HEADS[0]))
    scan = 2 * 32 * (48 + 128) + 4 * 128 * 12  # of a token, in chunks of 32
    hybrid = 6 * s * (2 * h * (SSM_IN + SSM_OUT) + ATTENTION + MLP + V * h)
    hybrid += 12 * square * h + 3 * 2 * s * scan
    yield from ((HYBRID, words, hybrid) for words in (*SPLITS, *OF_HEADS))
    module = 6 * s * (2 * h * h + ATTENTION + MLP + V * h) + 12 * square * h
    yield from ((FURTHER, words, dense + module) for words in (*SPLITS[:6], OF_HEADS[0]))


@pytest.mark.parametrize(("gpt", "words", "flops"), list(of_models()), ids=shown)
def test_no_split_recipe_or_schedule_changes_the_models_flops(
    gpt: GPT, words: str, flops: int
) -> None:
    every = programs(gpt, words)
    assert sum(each.model_flops for each in every) == every[0].plan.batch * flops


@pytest.mark.parametrize("gpt", [DENSE, WINDOW, PACKED, LATENT, FURTHER, MIXTURE], ids=shown)
@pytest.mark.parametrize("kind", ["ring", "all_gather", "ulysses"])
def test_each_of_c_ranks_does_a_cth_of_the_scores(gpt: GPT, kind: str) -> None:
    """Also where a window leaves steps out, or documents give ranks different work: their mean
    counts, and the busiest one's share beside it."""
    whole, split = (
        sum(op.flops for op in programs(gpt, words)[0].ops if op.kind in ATTENTIONS)
        for words in ("dp=1", f"cp=4,context_kind={kind}")
    )
    assert whole == 4 * split


def test_full_recomputation_does_the_layers_forward_once_more_and_no_other() -> None:
    """Nor the classifier's, whatever the schedule, and on c ranks a c-th each."""
    again = 2 * s * MATRICES + 4 * L * s * s * h
    for words in ("dp=1", "cp=4", "pp=2,schedule=zb-h1", "recipe=mxfp8"):
        every = programs(DENSE, f"{words},recompute=full")
        hardware, model = (
            sum(getattr(each, name) for each in every) for name in ("hardware_flops", "model_flops")
        )
        assert hardware - model == every[0].plan.batch * again


RING_4 = s // 4 * 2 * ROW  # keys and values of one of four ranks
ROWS, COUNTS = k * s * ROW, E * 8  # rows to experts and back, of a sequence; what is to come
SENT = L * (4 * ROWS + 2 * k * s * 4 + COUNTS)  # both passes, with scores in fp32
AGAIN = L * (2 * ROWS + k * s * 4 + COUNTS)
GATHERED = 2 * s * ROW, 2 * s * k * 4, 2 * s * k * 8  # tokens, scores and choices of two ranks
TO_EXPERTS = "ep:all_to_all"
# Bytes of a rank for each micro-batch, by axis and kind: a plan's keys and values, rows to experts,
# messages (of all stages together) and rows of tensor parallelism.
EACH: list[tuple[GPT, str, dict[str, int]]] = [
    (DENSE, "cp=4", {"cp:ring_shift": L * 10 * RING_4}),  # 3 forward, 7 backward
    (DENSE, "cp=4,recompute=full", {"cp:ring_shift": L * 13 * RING_4}),
    (DENSE, "cp=4,recompute=selective", {"cp:ring_shift": L * 13 * RING_4}),
    (DENSE, "cp=4,recipe=mxfp8", {"cp:ring_shift": L * 10 * RING_4}),
    (DENSE, "cp=4,pp=2,schedule=zb-h1", {"cp:ring_shift": L * 10 * RING_4}),
    (WINDOW, "cp=4", {"cp:ring_shift": L * 10 * RING_4}),  # keys go on around
    (PACKED, "cp=4", {"cp:ring_shift": L * 10 * RING_4}),
    (FURTHER, "cp=4", {"cp:ring_shift": (L + 1) * 10 * RING_4}),
    (LATENT, "cp=4", {"cp:ring_shift": L * 10 * (s // 4 * 8 * (16 + 8) * 2)}),
    (
        DENSE,
        "cp=4,context_kind=all_gather,recompute=full",
        {"cp:all_gather": L * 3 * 4 * RING_4, "cp:reduce_scatter": L * 4 * RING_4},
    ),
    (
        LATENT,
        "cp=4,context_kind=all_gather,context_latents=true",
        {
            "cp:all_gather": L * 2 * s * (24 + 8) * 2,
            "cp:reduce_scatter": L * s * (24 + 8) * 2,
        },
    ),
    (DENSE, "cp=4,context_kind=ulysses", {"cp:all_to_all": L * 2 * s // 4 * 4 * ROW}),
    (
        DENSE,
        "cp=4,context_kind=ulysses,recompute=full",
        {"cp:all_to_all": L * 3 * s // 4 * 4 * ROW},
    ),
    (
        LATENT,  # queries, keys, values and contexts of 8 heads
        "cp=4,context_kind=ulysses",
        {"cp:all_to_all": L * 2 * s // 4 * 8 * (16 + 16 + 8 + 8) * 2},
    ),
    (
        DENSE,  # half of the heads of twice the rows go around half of the ranks
        "cp=4,context_heads=2",
        {
            "inner_cp:all_to_all": L * 2 * s // 4 * 4 * ROW,
            "outer_cp:ring_shift": L * 4 * RING_4,
        },
    ),
    (
        HYBRID,  # in two layers tokens are traded for heads and back, in either pass
        "cp=4",
        {"cp:all_to_all": 2 * 2 * s // 4 * (SSM_IN + SSM_OUT) * 2, "cp:ring_shift": 10 * RING_4},
    ),
    (
        HYBRID,
        "tp=2,cp=2,recompute=full",
        {"cp:all_to_all": 2 * 3 * s // 2 * (SSM_IN + SSM_OUT) // 2 * 2},
    ),
    (
        HYBRID,  # a scan has heads of whole sequences, whatever attention has
        "cp=4,context_heads=2",
        {
            "cp:all_to_all": 2 * 2 * s // 4 * (SSM_IN + SSM_OUT) * 2,
            "inner_cp:all_to_all": 2 * s // 4 * 4 * ROW,
        },
    ),
    (MIXTURE, "dp=2,ep=2", {TO_EXPERTS: SENT}),
    (MIXTURE, "dp=2,ep=2,overlap=a2a", {TO_EXPERTS: SENT}),
    (MIXTURE, "dp=2,ep=2,overlap=a2a+wgrad,recipe=mxfp8", {TO_EXPERTS: SENT}),
    (MIXTURE, "dp=2,ep=2,pp=2,schedule=zb-h1", {TO_EXPERTS: SENT}),
    (MIXTURE, "dp=2,ep=2,dispatcher=hierarchical", {TO_EXPERTS: SENT}),
    (MIXTURE, "dp=2,ep=2,recompute=full", {TO_EXPERTS: SENT + AGAIN}),
    (MIXED, "dp=2,ep=2", {TO_EXPERTS: SENT // L * (L + 1)}),
    # Of experts alone the way back runs again only for scores that weigh what has returned.
    (MIXTURE, "dp=2,ep=2,recompute=moe", {TO_EXPERTS: SENT + AGAIN - L * ROWS}),
    (PLACES, "dp=2,ep=2,dispatcher=sparse", {TO_EXPERTS: L * 4 * ROWS}),
    (PLACES, "dp=2,ep=2,dispatcher=sparse,recompute=moe", {TO_EXPERTS: L * 6 * ROWS}),
    (
        MIXTURE,  # two of four ways in 8 bits, with a byte for 32 columns
        "dp=2,ep=2,recipe=mxfp8,fp8_dispatch=true",
        {TO_EXPERTS: SENT - L * 2 * k * s * (h - h // 32)},
    ),
    (
        MIXTURE,  # ranks of context hold different experts, with half of a sequence each
        "cp=2,ep=2",
        {
            "cp:ring_shift": L * 4 * 2 * RING_4,
            "cp:all_to_all": (SENT - L * COUNTS) // 2 + L * COUNTS,
        },
    ),
    (
        MIXTURE,
        "dp=2,ep=2,dispatcher=all_gather",
        {
            "ep:all_gather": L * (sum(GATHERED) + GATHERED[0]),
            "ep:reduce_scatter": L * (2 * GATHERED[0] + GATHERED[1]),
        },
    ),
    (
        MIXTURE,
        "dp=2,ep=2,dispatcher=all_gather,recompute=full",
        {
            "ep:all_gather": L * (2 * sum(GATHERED) + GATHERED[0]),
            "ep:reduce_scatter": L * (3 * GATHERED[0] + GATHERED[1]),
        },
    ),
    (MIXTURE, "tp=2,dp=2,ep=2,sp=true", {TO_EXPERTS: SENT}),
    (
        MIXTURE,  # each rank of x sends its own half to other experts
        "tp=2,dp=2,ep=2,sp=true,etp=1",
        {"tp:all_to_all": (SENT - L * COUNTS) // 2 + L * COUNTS},
    ),
    (DENSE, "pp=2,cp=2", {"pp:recv": 2 * s // 2 * ROW}),  # there and back
    (DENSE, "pp=2,recipe=mxfp8,recompute=full", {"pp:recv": 2 * s * ROW}),
    (DENSE, "pp=2,tp=2,sp=true", {"pp:recv": 2 * s // 2 * ROW}),
    (DEEP, "pp=2,vpp=2", {"pp:recv": 3 * 2 * s * ROW}),  # of 4 chunks
    (
        DEEP,  # in a V the second and third chunk are on one stage
        "pp=2,vpp=2,schedule=dualpipe-v,cp=2",
        {"pp:recv": 2 * 2 * s // 2 * ROW},
    ),
    (
        DENSE,  # gathered again for gradients of weights; embedding and classifier once
        "tp=2,sp=true,cp=2",
        {
            "tp:reduce_scatter": (4 * L + 2) * s // 2 * ROW,
            "tp:all_gather": 3 * (2 * L + 1) * s // 2 * ROW,
        },
    ),
    (
        DENSE,
        "tp=2,sp=true,recompute=full",
        {
            "tp:reduce_scatter": (6 * L + 2) * s * ROW,
            "tp:all_gather": (3 * (2 * L + 1) + 2 * L) * s * ROW,
        },
    ),
]
WHOLE, LOSS = P - NORMS, 4  # what is sharded; a step's loss
LOCAL = L * E // 2 * EXPERT  # of two ranks of experts
SHARED = L * ATTENTION + TABLES
GATHERS = MICRO_BATCHES * (4 * MATRICES + 2 * TABLES)
# Bytes of a rank in a step of two micro-batches: gradients in fp32, parameters in bf16.
STEP: list[tuple[GPT, str, dict[str, int]]] = [
    (DENSE, "dp=2", {"dp:all_reduce": 4 * P + LOSS}),
    (DENSE, "dp=2,recipe=fp8-tensorwise,recompute=full", {"dp:all_reduce": 4 * P + LOSS}),
    (DENSE, "dp=2,gradients=bf16", {"dp:all_reduce": 2 * P + LOSS}),
    (DENSE, "dp=2,zero=1", {"dp:reduce_scatter": 4 * WHOLE, "dp:all_gather": 2 * WHOLE}),
    (
        DENSE,
        "dp=2,zero=1,offload=update",
        {"dp:reduce_scatter": 4 * WHOLE, "dp:all_gather": 2 * WHOLE},
    ),
    (
        DENSE,
        "cp=2,dp=2,zero=1",
        {"cp+dp:reduce_scatter": 4 * WHOLE, "cp+dp:all_gather": 2 * WHOLE},
    ),
    (
        DENSE,  # momentum of whole matrices in bf16 besides
        "dp=2,zero=1,optimizer=muon",
        {"dp:reduce_scatter": 4 * WHOLE, "dp:all_gather": 2 * WHOLE + 2 * MATRICES},
    ),
    (
        DENSE,  # in bf16, of each micro-batch
        "dp=2,zero=2",
        {"dp:reduce_scatter": MICRO_BATCHES * 2 * WHOLE, "dp:all_gather": 2 * WHOLE},
    ),
    *(
        (
            DENSE,  # layers for either pass, tables for one
            f"dp=2,zero=3{more}",
            {"dp:all_gather": GATHERS, "dp:reduce_scatter": MICRO_BATCHES * 2 * WHOLE},
        )
        for more in ("", ",recompute=full", ",recipe=mxfp8")
    ),
    (DENSE, "cp=2,dp=2,zero=3", {"cp+dp:all_gather": GATHERS}),
    (
        MIXTURE,  # two copies of the experts' halves, four of the rest
        "dp=4,ep=2,zero=1",
        {
            "dp:reduce_scatter": 4 * SHARED,
            "edp:reduce_scatter": 4 * LOCAL,
            "edp:all_gather": 2 * LOCAL,
        },
    ),
    (
        MIXTURE,
        "dp=2,ep=2,zero=1",
        {"dp:reduce_scatter": 4 * SHARED, "edp:reduce_scatter": 0},
    ),
]


def sent(gpt: GPT, words: str) -> Counter[str]:
    """The bytes of collectives of all stages, and of messages, by axis and kind."""
    found = Counter[str]()
    for op in (op for each in programs(gpt, words) for op in each.ops if op.communicates):
        found[f"{'+'.join(op.axes)}:{op.kind}"] += op.nbytes
    return found


@pytest.mark.parametrize(("gpt", "words", "expected"), EACH, ids=shown)
def test_each_micro_batch_sends_what_both_features_make_of_it(
    gpt: GPT, words: str, expected: dict[str, int]
) -> None:
    found = sent(gpt, words)
    assert {key: found[key] for key in expected} == {
        key: micro_batches(words) * nbytes for key, nbytes in expected.items()
    }


@pytest.mark.parametrize(("gpt", "words", "expected"), STEP, ids=shown)
def test_each_step_reduces_gradients_and_gathers_parameters_of_both(
    gpt: GPT, words: str, expected: dict[str, int]
) -> None:
    found = sent(gpt, words)
    assert {key: found[key] for key in expected} == expected


KEPT = NORMS + L * h * E  # norms and routers are not sharded
# Bytes by role at the peak: AdamW has 12 for a parameter, Muon 8 for one of a layer's matrices.
HELD: list[tuple[GPT, str, dict[str, int]]] = [
    (DENSE, "dp=2,zero=1", {"optimizer": 12 * (WHOLE // 2 + NORMS), "gradients": 4 * P}),
    (DENSE, "cp=2,dp=2,zero=1", {"optimizer": 12 * (WHOLE // 4 + NORMS)}),
    (DENSE, "cp=4,zero=3,recompute=full", {"parameters": 2 * (WHOLE // 4 + NORMS)}),
    (DENSE, "dp=2,zero=2,gradients=bf16", {"gradients": 2 * (WHOLE // 2 + NORMS)}),
    (DENSE, "optimizer=muon,cp=2", {"optimizer": 12 * P - 4 * MATRICES}),
    (
        DENSE,
        "optimizer=muon,dp=2,zero=1",
        {"optimizer": 12 * (TABLES // 2 + NORMS) + 8 * MATRICES // 2},
    ),
    (DENSE, "dp=2,zero=1,offload=update", {"optimizer": 0, "host": 12 * (WHOLE // 2 + NORMS)}),
    (DENSE, "cp=2,zero=1,offload=optimizer", {"host": 12 * (WHOLE // 2 + NORMS)}),
    (DENSE, "offload=optimizer,optimizer=muon", {"host": 12 * P - 4 * MATRICES}),
    (
        MIXTURE,
        "dp=2,ep=2,zero=1",
        {"optimizer": 12 * (SHARED // 2 + KEPT + LOCAL), "parameters": 2 * (SHARED + KEPT + LOCAL)},
    ),
    (
        MIXTURE,
        "cp=2,dp=2,ep=4,zero=1",
        {"optimizer": 12 * (SHARED // 4 + KEPT + LOCAL // 2)},
    ),
    # Copies of the weights for either pass in 8 bits, with a byte for 32; gathered ones drop them.
    (DENSE, "recipe=mxfp8", {"parameters": 2 * P + 2 * MATRICES * 33 // 32}),
    (DENSE, "recipe=mxfp8,cp=2", {"parameters": 2 * P + 2 * MATRICES * 33 // 32}),
    (DENSE, "recipe=mxfp8,dp=2,zero=3", {"parameters": 2 * (WHOLE // 2 + NORMS)}),
]


@pytest.mark.parametrize(("gpt", "words", "expected"), HELD, ids=shown)
def test_what_is_held_all_the_time_is_split_as_both_say(
    gpt: GPT, words: str, expected: dict[str, int]
) -> None:
    parts = programs(gpt, words)[0].peak.parts
    assert {role: parts[role] for role in expected} == expected


@pytest.mark.parametrize(
    ("gpt", "more"),
    [
        *((DENSE, more) for more in ("", ",recompute=full", ",recipe=mxfp8")),
        *((DENSE, more) for more in (",offload=update", ",optimizer=muon", ",zero=3")),
        *((gpt, "") for gpt in (WINDOW, PACKED, LATENT, FURTHER, HYBRID)),
    ],
)
def test_half_of_a_sequence_has_half_of_the_activations(gpt: GPT, more: str) -> None:
    whole, half = (
        programs(gpt, f"{words}{more}")[0].peak.parts["activations"] for words in ("dp=2", "cp=2")
    )
    assert whole == 2 * half


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4", "fp8-tensorwise"])
def test_a_recipe_keeps_less_but_nothing_where_layers_run_again(recipe: str) -> None:
    few, many = (
        [
            programs(DENSE, f"recipe={name},recompute={again}")[0].peak.parts["activations"]
            for name in ("none", recipe)
        ]
        for again in ("full", "none")
    )
    assert few[0] == few[1] < many[1] < many[0]


@pytest.mark.parametrize("more", one_in(3, ["", ",recipe=mxfp8", ",optimizer=muon"]))
def test_gpipe_keeps_a_layers_input_of_each_micro_batch_and_1f1b_no_more(more: str) -> None:
    """Where layers run again: of two layers on a stage, and half of it where two ranks share a
    sequence. 1F1B has two in flight whatever their number."""
    for context in (1, 2):
        words = f"pp=2,recompute=full,cp={context}{more}"
        levels = {
            schedule: [
                programs(DEEP, f"{words},schedule={schedule}", count)[0].peak.parts["activations"]
                for count in (3, 4)
            ]
            for schedule in ("gpipe", "1f1b")
        }
        assert levels["gpipe"][1] - levels["gpipe"][0] == 2 * s * ROW // context
        assert levels["1f1b"][1] == levels["1f1b"][0] < levels["gpipe"][0]


COSTS = AnalyticCosts(
    load_machine("dgx-h100"),
    1,
    Kernels(host_s=1.0, host_of_expert_s=1e4, narrow_host_of_expert_s=1e8),
)
# Times an expert's kernel is issued by a rank in a step of two micro-batches: three products of
# either linear for each expert that it has.
ISSUED: list[tuple[str, int]] = [
    ("dp=1", E * 6),
    ("dp=2,ep=2", E // 2 * 6),
    ("cp=2,ep=2", E // 2 * 6),
    ("dp=2,ep=2,recompute=full", E // 2 * 8),
    ("dp=2,ep=2,overlap=a2a+wgrad", E // 2 * 6),
    ("dp=2,ep=2,dispatcher=all_gather", E // 2 * 6),
    ("dp=2,ep=2,pp=2,schedule=zb-h1", E // 2 * 6),
    ("dp=4,ep=4,zero=3", E // 4 * 6),
    ("tp=2,dp=2,ep=2,sp=true,etp=1", E // 2 * 6),
    ("dp=2,ep=2,offload=update", E // 2 * 6),
]


@pytest.mark.parametrize(
    ("recipe", "each_s"),
    [("none", 1e4), ("fp8-tensorwise", 1e8), ("mxfp8", 1e8), ("nvfp4", 1e8)],
)
@pytest.mark.parametrize(("words", "count"), ISSUED)
def test_a_host_issues_each_experts_kernels_in_the_time_of_the_recipe(
    words: str, count: int, recipe: str, each_s: float
) -> None:
    """A call takes a second, and so few calls are less than one kernel."""
    ops = [op for each in programs(MIXTURE, f"{words},recipe={recipe}") for op in each.ops]
    found = sum(map(COSTS.host_s, ops))
    assert found // each_s == MICRO_BATCHES * L * count
    assert len(ops) >= found % each_s > 0


def test_a_recipe_changes_the_products_that_it_names_and_no_other() -> None:
    """Linears of layers; neither attention, the router, products with masks, the classifier nor
    Muon's."""
    for recipe, dtype in (("fp8-tensorwise", "fp8"), ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4")):
        for gpt, words in (
            (DENSE, "cp=4,recompute=full,optimizer=muon"),
            (MIXTURE, "dp=2,ep=2,recompute=full,overlap=a2a"),
            (PLACES, "dp=2,ep=2,dispatcher=dense"),
        ):
            found = {op.name: op for op in programs(gpt, f"{words},recipe={recipe}")[0].ops}
            for op in programs(gpt, words)[0].ops:
                named: Any = op.label.split(".")[-2:] if op.flops else ""
                linear = op.label.startswith(("qkv", "out", "up", "down", "experts.")) and named
                expected = dtype if linear and op.block.work else op.dtype
                assert not op.flops or found[op.name].dtype == expected, (recipe, op.name)
                assert found[op.name].flops == op.flops
