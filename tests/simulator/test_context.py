"""Sequences split over `context`: what a step moves, computes and holds, and when it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.attention import attention_s
from simulator.predict import predict
from tests.examples import one_in
from tests.messages import names
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT, find_model
from workload.kinds import ATTENTIONS
from workload.lowering import lower
from workload.op import KEYS_EXCHANGE, Op
from workload.plan_text import parse_plan
from workload.splits.plan_values import CHOICES

KINDS = CHOICES["context_kind"]
DGX = load_machine("dgx-h100")
SMALL = GPT.of(
    name="small", layers=2, hidden=512, heads=8, ffn=2048, sequence=4096, vocab=1000, kv_heads=2
)
MANY = SMALL.changed(kv_heads=0)  # as many heads of keys as Ulysses splits in these tests


def exchanged(context: int, kind: str) -> list[Op]:
    plan = parse_plan({"cp": context, "context_kind": kind, "batch": 1})
    return [op for op in lower(SMALL, plan).ops if op.axes == ("cp",)]


@pytest.mark.parametrize("context", [2, 4])
def test_the_ring_moves_keys_and_values_once_less_than_their_gradients(context: int) -> None:
    """A rank has 4096/c rows of 2 heads of keys and 2 of values, 64 wide, in bf16; forward they
    go c - 1 times, backward again with c times their gradients."""
    ops = [op for op in exchanged(context, "ring") if op.kind == "ring_shift"]
    assert {op.nbytes for op in ops} == {4096 // context * 4 * 64 * 2}
    assert len(ops) == SMALL.layers * (3 * context - 2)
    assert {op.stream for op in ops} == {"cp"}


def test_keys_and_values_of_latent_attention_go_around_in_their_own_widths() -> None:
    """Of 2048 rows 8 heads of keys 64 + 32 wide and of values 48."""
    gpt = MANY.changed(biases=False, positions="rope", head_width=64)
    gpt = gpt.changed(kv_rank=96, rope_width=32, value_width=48)
    program = lower(gpt, parse_plan("cp=2"))
    shifts = [op for op in program.ops if op.kind == "ring_shift"]
    assert {op.nbytes for op in shifts} == {2048 * 8 * (96 + 48) * 2}
    assert program.model_flops == gpt.model_flops(program.plan.batch)


def test_neighbours_that_trade_heads_shorten_the_ring() -> None:
    """Four ranks in a ring of two pairs: half of the heads of 2048 rows go to one other rank."""
    plan = parse_plan("cp=4,context_heads=2")
    program = lower(MANY, plan)
    assert program.model_flops == MANY.model_flops(plan.batch)
    shifts = [op for op in program.ops if op.kind == "ring_shift"]
    assert {(op.axes, op.nbytes) for op in shifts} == {(("outer_cp",), 2048 * 2 * 4 * 64 * 2)}
    assert len(shifts) == MANY.layers * (3 * 2 - 2)
    traded = [op for op in program.ops if op.kind == "all_to_all"]
    assert {op.axes for op in traded} == {("inner_cp",)}
    assert traded[0].nbytes == 2 * 1024 * 3 * 4 * 64 * 2
    assert plan.grid.groups("inner_cp").tolist() == [[0, 1], [2, 3]]
    assert plan.grid.groups("outer_cp").tolist() == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("cp=4,context_heads=2,context_kind=ulysses", ("context_kind=ring",)),
        ("cp=4,context_heads=3", ("context_heads=3", "cp=4")),
        ("cp=4,context_heads=4", ("context_heads=4", "context_kind=ulysses")),
        ("cp=2,tp=4,context_heads=1,context_kind=ulysses", ("tp*cp=8",)),
        ("cp=8,context_heads=2,ep=4", ("ep=4", "cp=8", "context_heads=2")),
    ],
)
def test_cores_that_cannot_be_shared_so_are_refused(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises((PlanError, PlanCannotRunError), check=names(*named)):
        lower(MANY.changed(heads=4, head_width=64), parse_plan(text))


def test_all_keys_and_values_are_gathered_twice_and_their_gradients_scattered_once() -> None:
    ops = [op for op in exchanged(4, "all_gather") if op.nbytes == 4096 * 4 * 64 * 2]
    assert sorted(op.kind for op in ops) == ["all_gather"] * 4 + ["reduce_scatter"] * 2


def test_ulysses_sends_heads_of_all_three_and_gets_contexts_back() -> None:
    """A rank's 1024 rows of 8 + 2 heads of queries, keys and values and of 8 of contexts, and so
    their gradients."""
    plan = parse_plan("cp=2,context_kind=ulysses")
    ops = [op for op in lower(replace(SMALL, sequence=2048), plan).ops if op.kind == "all_to_all"]
    assert [op.nbytes // (1024 * 64 * 2) for op in ops] == [12, 8] * 2 + [8, 12] * 2
    with pytest.raises(PlanCannotRunError, check=names("tp*cp=4", "kv_heads=2")):
        lower(SMALL, parse_plan("cp=4,context_kind=ulysses"))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("cp=4", 1024),
        ("cp=4,context_kind=ulysses", 4096),
        ("cp=4,context_heads=2", 2048),
    ],
)
def test_a_core_drops_probabilities_of_as_many_tokens_as_it_has(text: str, tokens: int) -> None:
    """Of its own 1,024, or of those of all that traded heads with it; of fewer heads."""
    ops = lower(replace(MANY, dropout=0.1), parse_plan(text)).ops
    found = {(op.attributes["rows"], op.attributes["heads"]) for op in ops if op.kind in ATTENTIONS}
    assert found == {(tokens, 8 * 1024 // tokens)}


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_together_do_the_flops_of_one(kind: str) -> None:
    whole = lower(MANY, parse_plan("dp=1"))
    for text in ("cp=8", "cp=2,tp=2,dp=2", "cp=4,y=2"):
        split = lower(MANY, parse_plan(f"{text},context_kind={kind}"))
        batch = split.plan.batch
        assert split.model_flops == batch * whole.model_flops == MANY.model_flops(batch)


def test_a_rings_steps_take_as_long_as_half_of_the_square_without_a_mask() -> None:
    """Nor have blocks on the diagonal anything to throw away."""
    ops = lower(SMALL, parse_plan("cp=4")).ops
    device = DGX.device
    times = [
        attention_s(device, 1e15, op)
        for op in ops
        if op.kind in ATTENTIONS and op.part.layer == 0 and op.kind == "attention"
    ]
    assert len(times) == 4
    assert times[1] == times[2] == times[3] < times[0]


@pytest.mark.parametrize("more", ["", ",context_heads=2", ",recompute=selective"])
def test_only_a_rings_first_step_has_the_mask(more: str) -> None:
    """Later ones have the keys of earlier ranks for all queries, or of later ranks for half. So
    kernels drop nothing there; a ring over half of the ranks has half of the steps."""
    steps = 2 if "heads" in more else 4
    ops = lower(MANY, parse_plan(f"cp=4{more}")).ops
    for kind in ATTENTIONS:
        own = [op for op in ops if op.kind == kind and op.part.layer == 0]
        assert len(own) in (steps, 2 * steps)  # attention alone runs again
        first = [True] + [False] * (steps - 1)
        assert [op.attributes["causal"] for op in own] == first * (len(own) // steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", one_in(3, ["pp=2,dp=2,mbs=1", "dp=2", "tp=2,recompute=full"]))
def test_folded_and_unfolded_steps_and_their_ops_are_the_same(kind: str, text: str) -> None:
    plan = parse_plan(f"cp=4,context_kind={kind},{text}", batch=8)
    gpt = replace(MANY, layers=6)
    folded, whole = predict(gpt, plan, DGX), predict(gpt, plan, DGX, fold=False, timeline=True)
    assert folded.step_s == whole.step_s
    assert folded.memory == whole.memory
    assert folded.comm_bytes == whole.comm_bytes
    assert whole.timeline is not None
    assert whole.timeline.step_s == pytest.approx(folded.step_s, rel=1e-12)
    programs = [lower(gpt, plan, stage) for stage in range(plan.pp)]
    assert folded.memory.peak_bytes == max(program.peak.total_bytes for program in programs)
    assert folded.comm_bytes in [program.comm_bytes for program in programs]


def test_a_million_tokens_fit_where_enough_devices_split_them() -> None:
    """A sequence of 2^20 tokens of Llama 3.1 8B: activations shrink with context, and nothing
    grows with the square of the sequence."""
    gpt = replace(find_model("llama-3.1-8b"), sequence=1 << 20)
    peaks = [
        predict(gpt, parse_plan(f"tp=8,cp={c},sp=true,zero=1,recompute=full"), DGX).memory
        for c in (1, 2, 4)
    ]
    activations = [each.parts["activations"] for each in peaks]
    assert activations[0] == pytest.approx(2 * activations[1], rel=0.01)
    assert activations[1] == pytest.approx(2 * activations[2], rel=0.01)
    assert [each.fits for each in peaks] == [False, True, True]
    states = [each.parts["optimizer"] for each in peaks]
    assert states == pytest.approx([states[0], states[0] / 2, states[0] / 4], rel=0.001)


@pytest.mark.parametrize("how", ["context_kind=ring", "context_kind=all_gather"])
def test_the_memory_of_a_million_tokens_is_that_by_hand(how: str) -> None:
    """2^20 tokens of Llama 3.1 8B over tp=8 and cp=16, layers recomputed: 65,536 rows a rank.

    The peak is at the loss' gradient. Then 32 layers have kept their inputs, of 8,192 of these rows
    each (sequence parallelism), and the last norm its source, its output and 4 bytes a row; of an
    eighth of the vocabulary there are logits in fp32 and their gradient. Of P parameters of a rank,
    65 norms besides the eighth of the rest, there are 2 bytes, 4 of gradients and 12 of states over
    16 ranks, those of the norms whole.
    """
    gpt = replace(find_model("llama-3.1-8b"), sequence=1 << 20)
    plan = parse_plan(f"tp=8,cp=16,sp=true,zero=1,recompute=full,{how}", batch=1)
    program = lower(gpt, plan)
    rows, vocab, norms = 65_536, 128_256 // 8, 65 * 4096
    inputs = (32 + 2) * rows // 8 * 4096 * 2 + 4 * rows // 8
    assert program.peak.parts["activations"] == inputs + rows * vocab * (4 + 2)
    own = (gpt.parameters - norms) // 8 + norms
    parts = program.peak.parts
    assert (parts["parameters"], parts["gradients"]) == (2 * own, 4 * own)
    assert parts["optimizer"] == 12 * ((own - norms) // 16 + norms)
    if "all_gather" in how:
        keys = [b.nbytes for name, b in program.buffers.items() if name.endswith("kv.all")]
        assert set(keys) == {(1 << 20) * 2 * 128 * 2}


LATENT = MANY.changed(
    biases=False, positions="rope", head_width=64, kv_rank=96, rope_width=32, value_width=48
)


def test_latents_are_gathered_in_place_of_keys_and_values() -> None:
    """Of 4096 rows 96 numbers and 32 of positions go to all ranks, twice, and their gradients back,
    in place of 8 heads 96 + 48 wide; each rank leads all rows up twice, of which the model has a
    fourth once."""
    text = "cp=4,context_kind=all_gather"
    plain, gathered = (
        lower(LATENT, parse_plan(text + more)) for more in ("", ",context_latents=true")
    )
    ops = [op for op in gathered.ops if op.axes == ("cp",) and op.part.layer == 0]
    exchanges = [op for op in ops if op.purpose == KEYS_EXCHANGE]
    numbers = [(op.kind, op.nbytes // (4096 * 2)) for op in exchanges]
    assert sorted(numbers) == sorted(
        [("all_gather", 96), ("all_gather", 32)] * 2 + [("reduce_scatter", 96)]
        + [("reduce_scatter", 32)]
    )  # fmt: skip
    once = 2 * 4096 * 96 * 8 * (64 + 48)
    ups = [op.flops for op in gathered.ops if op.label.startswith("kv_up") and op.flops]
    assert ups == [once] * 4 * LATENT.layers
    assert plain.model_flops == gathered.model_flops == LATENT.model_flops(1)
    assert gathered.hardware_flops - plain.hardware_flops == LATENT.layers * once
    assert [op.flops for op in plain.ops if op.label == "kv_up.matmul"] == [once // 4] * 2


def test_gathered_latents_are_a_fraction_of_the_keys_and_values_of_many_heads() -> None:
    """Of 16 heads 192 + 128 wide 512 + 64 numbers are left; the step is the shorter for it."""
    gpt = replace(find_model("deepseek-v2-lite"), sequence=32768, layers=2)
    text = "cp=16,dp=4,mbs=1,ep=8,context_kind=all_gather"
    machine = load_machine("8x8xH100,8xNDR")
    plain, latents = (
        predict(gpt, parse_plan(f"{text}{more}", batch=4), machine)
        for more in ("", ",context_latents=true")
    )
    assert latents.comm_bytes["cp"] / plain.comm_bytes["cp"] < 0.25
    assert latents.step_s < plain.step_s


@pytest.mark.parametrize(
    ("gpt", "text", "named"),
    [
        (LATENT, "cp=2", ("1", "context_kind=all_gather")),
        (
            LATENT,
            "dp=2,context_kind=all_gather",
            ("context_latents=true", "context_kind=all_gather"),
        ),
        (
            LATENT,
            "cp=2,context_kind=all_gather,recompute=selective",
            ("context_latents=true", "recompute=none", "full", "selective"),
        ),
        (
            LATENT,
            "cp=2,context_kind=all_gather,recipe=fp8-tensorwise",
            ("context_latents=true", "recipe=fp8-tensorwise"),
        ),
        (MANY, "cp=2,context_kind=all_gather", ("small", "kv_rank=0")),
    ],
)
def test_latents_that_cannot_be_gathered_are_refused(
    gpt: GPT, text: str, named: tuple[str, ...]
) -> None:
    with pytest.raises((PlanError, PlanCannotRunError), check=names(*named)):
        lower(gpt, parse_plan(f"{text},context_latents=true"))
