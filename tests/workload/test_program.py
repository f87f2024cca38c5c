"""The program: what AxoNN's schedule and its overlaps look like, op by op."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.op import COMPUTE, Op
from workload.overlaps import OVERLAPS
from workload.passes.reduce_scatters import IN_FLIGHT
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program
from workload.recomputation.parts import RECOMPUTES

GOLDEN = Path(__file__).parent / "golden"
ONE_LAYER = GPT.of(name="one", layers=1, hidden=32, heads=8, ffn=128, sequence=16, vocab=256)
FURTHER = GPT.of(
    name="further", layers=8, hidden=128, heads=2, ffn=256, sequence=64, vocab=1000,
    kv_heads=2, positions="rope", activation="swiglu", biases=False, tied=True, mtp_layers=2,
    experts=4, topk=2, expert_ffn=256, shared_ffn=128, dense_layers=1,
)  # fmt: skip
ONE_LLAMA = replace(find_model("tiny-llama-40k"), layers=1)


def program_of(text: str, gpt: GPT = ONE_LAYER, batch: int = 8) -> Program:
    return lower(gpt, parse_plan(text, batch=batch))


def names(program: Program, block: str) -> list[str]:
    return [op.name for op in program.ops if str(op.block) == block]


def op_of(program: Program, name: str) -> Op:
    return next(op for op in program.ops if op.name == name)


def place(program: Program, name: str) -> int:
    return [op.name for op in program.ops].index(name)


def table(program: Program) -> str:
    """The program as a person reads it: stream, op, what it reads and writes."""
    lines = []
    for op in program.ops:
        axes = f" {'+'.join(op.axes)}" if op.axes else ""
        operands = f"{', '.join(op.writes)} <- {', '.join(op.reads)}"
        lines.append(f"{op.stream:8} {op.name:32} {op.kind}{axes}: {operands}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "plan", "gpt"),
    [
        ("serial", "dp=1", ONE_LAYER),
        ("blocking", "tp=2,y=2,z=2,dp=2,recompute=full,overlap=none", ONE_LAYER),
        ("overlapped", "tp=2,y=2,z=2,dp=2,recompute=full,overlap=all", ONE_LAYER),
        ("llama", "tp=2,y=2,z=2,dp=2,overlap=none", ONE_LLAMA),
        ("sp", "tp=2,z=2,dp=2,sp=true,overlap=oar", ONE_LAYER),
        ("unfused", "tp=2,y=2,attention=unfused,recompute=selective,overlap=none", ONE_LAYER),
    ],
)
def test_the_whole_program_is_as_reviewed(name: str, plan: str, gpt: GPT) -> None:
    text = table(program_of(plan, gpt, batch=4))
    path = GOLDEN / f"{name}.txt"
    assert text == path.read_text(encoding="utf-8"), f"see {path}, and rewrite it if this is meant"


def test_a_linear_reduces_its_output_over_y_and_its_input_gradient_over_x() -> None:
    program = program_of("tp=2,y=2,z=2,overlap=none")
    m, h, f = 4 * 16, 32, 128
    up = {name: op_of(program, f"m0.l0.up.{name}") for name in ("gather", "reduce", "grad.reduce")}
    assert (up["gather"].axes, up["gather"].nbytes) == (("z",), 2 * h * f // 4)
    assert (up["reduce"].axes, up["reduce"].nbytes) == (("y",), 2 * m * f // 2)
    assert (up["grad.reduce"].axes, up["grad.reduce"].nbytes) == (("tp",), 2 * m * h // 2)


def test_the_next_linear_swaps_x_and_y() -> None:
    program = program_of("tp=2,y=2,overlap=none")
    assert op_of(program, "m0.l0.down.reduce").axes == ("tp",)
    assert op_of(program, "m0.l0.down.grad.reduce").axes == ("y",)


def test_without_overlap_everything_runs_on_the_compute_stream() -> None:
    program = program_of("tp=2,y=2,z=2,dp=2,overlap=none")
    assert {op.stream for op in program.ops} == {COMPUTE}


def test_oar_runs_the_input_gradient_reduce_beside_the_weight_gradient() -> None:
    program = program_of("tp=2,overlap=oar")
    assert op_of(program, "m0.l0.up.grad.reduce").stream == "tp"
    following = place(program, "m0.l0.up.grad.reduce") + 1
    assert program.ops[following].name == "m0.l0.up.grad.weight"
    assert op_of(program, "m0.l0.down.reduce").stream == COMPUTE


def test_ors_awaits_reduce_scatters_at_the_end_of_the_backward_pass() -> None:
    program = program_of("z=2,overlap=ors")
    scatter = place(program, "m0.l0.down.grad.scatter")
    assert program.ops[scatter].stream == "z"
    waiting = [i for i, w in enumerate(program.waits) if scatter in w or (w and max(w) > scatter)]
    backward = place(program, "m0.embed.grad.scatter")
    assert all(program.ops[i].stream != COMPUTE or i > backward for i in waiting)


def whole_gradients(program: Program) -> int:
    """How many gradients that are not yet scattered live at once, at most."""
    live, most = set[str](), 0
    for op, gone in zip(program.ops, program.releases, strict=True):
        live |= {name for name in op.writes if name.endswith(".dw")}
        most = max(most, len(live))
        live -= set(gone)
    assert not live
    return most


def test_ors_holds_the_whole_gradients_of_a_layer_and_no_more() -> None:
    """Of three layers with four linears each, the embedding and the classifier, a scatter's whole
    gradient lives until four more are issued: five at most, where nothing else waits for z."""
    program = program_of("z=2,overlap=ors", replace(find_model("tiny-1m"), layers=3))
    assert whole_gradients(program) == IN_FLIGHT + 1


@pytest.mark.parametrize("layers", [8, 16])
def test_ors_holds_no_more_where_gradients_put_off_are_added_several_at_once(layers: int) -> None:
    """The classifier of each module for further tokens adds to the embedding's table, so additions
    wait for another, and then two of them follow two scatters."""
    gpt = replace(FURTHER, layers=layers)
    plan = parse_plan("z=2,dp=2,ep=2,pp=2,recompute=full,overlap=ors+wgrad", batch=16)
    assert whole_gradients(lower(gpt, plan, stage=1)) == IN_FLIGHT + 2


def test_ors_computes_the_weight_gradient_first_where_nothing_covers_it() -> None:
    program = program_of("z=2,overlap=ors")
    assert place(program, "m0.l0.up.grad.scatter") < place(program, "m0.l0.up.grad.input")
    covered = program_of("tp=2,z=2,overlap=ors")
    assert place(covered, "m0.l0.up.grad.scatter") > place(covered, "m0.l0.up.grad.input")


def test_oag_gathers_a_weight_before_the_matmul_of_the_linear_before() -> None:
    program = program_of("z=2,overlap=oag")
    assert place(program, "m0.l0.out.gather") == place(program, "m0.l0.qkv.matmul") - 1
    assert op_of(program, "m0.l0.out.gather").stream == "z"


def test_oag_starts_anew_in_each_recomputed_layer() -> None:
    gpt = find_model("tiny-1m")
    ops = names(program_of("z=2,overlap=oag,recompute=full", gpt), "m0.l2.recompute")
    assert ops[1] == "m0.l2.re.qkv.gather"


def test_a_recomputed_layer_keeps_its_gathered_weights_for_the_backward() -> None:
    again = program_of("z=2,recompute=full")
    assert not any(".grad.gather" in op.name for op in again.ops)
    kept = program_of("z=2,recompute=none")
    assert sum(".grad.gather" in op.name for op in kept.ops) == 4


def test_selective_recomputation_runs_the_attention_core_again_right_before_its_gradient() -> None:
    program = program_of("tp=2,y=2,z=2,recompute=selective,overlap=none")
    assert names(program, "m0.l0.recompute") == ["m0.l0.re.attention"]
    core = place(program, "m0.l0.re.attention")
    assert program.ops[core + 1].name == "m0.l0.attention.grad"
    assert set(program.ops[core].writes) < set(program.ops[core + 1].reads)
    forward = place(program, "m0.l0.attention")
    assert "m0.l0.attention.lse" in program.releases[forward]
    assert "m0.l0.attention.o" in program.releases[place(program, "m0.l0.out.grad.weight")]
    attention = 4 * (4 * 2 * 16) * 16 * 32
    assert program.hardware_flops - program.model_flops == attention


def test_unfused_attention_multiplies_as_much_as_flash_on_squares_that_it_keeps() -> None:
    flash, unfused = (
        program_of(f"tp=2,y=2,attention={kind}", ONE_LLAMA) for kind in ("flash", "unfused")
    )
    assert unfused.model_flops == flash.model_flops
    scores = op_of(unfused, "m0.l0.attention.scores")
    assert (scores.attributes["m"], scores.attributes["count"]) == (2 * 16, 8 * 4)
    assert unfused.buffers["m0.l0.attention.softmax.o"].shape == (8, 8, 16, 16)
    assert unfused.releases[place(unfused, "m0.l0.attention.softmax")] == [scores.writes[0]]
    kept = unfused.releases[place(unfused, "m0.l0.attention.softmax.grad")]
    assert kept == ["m0.l0.attention.softmax.o"]


def test_sums_over_many_elements_are_kept_in_fp32_whatever_the_precision() -> None:
    buffers = program_of("dp=1,precision=bf16").buffers
    kept = {name.rpartition(".")[2]: b.dtype for name, b in buffers.items() if "l0." in name}
    assert kept["lse"] == kept["stats"] == "fp32"
    assert kept["o"] == "bf16"


def test_dropout_keeps_a_byte_per_element_where_megatron_has_it() -> None:
    gpt, text = replace(ONE_LAYER, dropout=0.1), "tp=2,attention=unfused"
    program = program_of(text, gpt)
    masks = {name: b.shape for name, b in program.buffers.items() if name.endswith(".mask")}
    rows, square = (8 * 16, 32), (8, 4, 16, 16)
    layer = {"attention": square, "out": rows, "down": rows}
    assert masks == {"m0.embed.mask": rows, **{f"m0.l0.{k}.mask": v for k, v in layer.items()}}
    assert program.buffers["m0.l0.out.mask"].nbytes == 8 * 16 * 32
    flash = program_of("tp=2", gpt)
    assert "m0.l0.attention.mask" not in flash.buffers
    assert op_of(flash, "m0.l0.attention").attributes["rate"] == 0.1


def test_a_layer_run_again_drops_the_same_elements() -> None:
    program = program_of("recompute=full", replace(ONE_LAYER, dropout=0.1), batch=2)
    once, again = (op_of(program, f"m0.l0.{name}dropout") for name in ("out.", "re.out."))
    assert once.attributes == again.attributes
    assert once.attributes["place"] == "l0.out"


def test_only_the_first_layers_are_recomputed_if_the_plan_says_how_many() -> None:
    program = program_of("recompute=full:3", find_model("tiny-1m"))
    layers = {op.part.layer for op in program.ops if op.is_recomputed}
    assert layers == {0, 1, 2}


def test_sequence_parallelism_gathers_rows_before_a_linear_and_scatters_sums_behind_it() -> None:
    program = program_of("tp=2,z=2,sp=true,overlap=none")
    m, h = 4 * 16, 32
    moved = {op.name: (op.kind, op.nbytes) for op in program.ops if op.axes == ("tp",)}
    for linear in ("qkv", "up"):
        assert moved[f"m0.l0.{linear}.rows.gather"] == ("all_gather", 2 * m * h)
        assert moved[f"m0.l0.{linear}.grad.source.gather"] == ("all_gather", 2 * m * h)
        assert moved[f"m0.l0.{linear}.grad.reduce"] == ("reduce_scatter", 2 * m * h)
    for linear in ("out", "down"):
        assert moved[f"m0.l0.{linear}.reduce"] == ("reduce_scatter", 2 * m * h)
        assert moved[f"m0.l0.{linear}.grad.rows.gather"] == ("all_gather", 2 * m * h)
    for part in ("norm1.o", "out.reduce.o", "norm2.o", "down.reduce.o"):
        assert program.buffers[f"m0.l0.{part}"].shape == (m // 2, h)


def test_the_gradients_of_what_worked_on_split_rows_are_summed_over_x_too() -> None:
    program = program_of("tp=2,z=2,dp=2,sp=true,overlap=none")
    rows, small = op_of(program, "rows.reduce"), op_of(program, "small.reduce")
    assert (rows.axes, small.axes) == (("tp", "z", "dp"), ("z", "dp"))
    assert small.reads == ("l0.qkv.b.grad", "l0.up.b.grad")
    assert {"norm.w.grad", "l0.out.b.grad", "position.w.grad"} < set(rows.reads)


@pytest.mark.parametrize(
    ("split", "parts"),
    [("tp=2", 1), ("y=2", 2), ("tp=2,sp=true", 2)],
)
def test_stages_send_each_other_the_rows_and_columns_that_ranks_have(
    split: str, parts: int
) -> None:
    """Of 2 sequences of 16 tokens and 32 columns, in 2 bytes."""
    text = f"pp=2,mbs=2,{split}"
    for stage in range(2):
        program = lower(replace(ONE_LAYER, layers=2), parse_plan(text, batch=4), stage)
        sent = {op.nbytes for op in program.ops if op.kind in ("send", "recv")}
        assert sent == {2 * 16 * 32 * 2 // parts}


def test_oar_gathers_the_input_again_beside_its_gradients_matmul() -> None:
    program = program_of("tp=2,sp=true,overlap=oar")
    gather = place(program, "m0.l0.up.grad.source.gather")
    following = [
        (op.name.rpartition("up.")[2], op.stream) for op in program.ops[gather : gather + 4]
    ]
    assert following == [
        ("grad.source.gather", "tp"),
        ("grad.input", COMPUTE),
        ("grad.reduce", "tp"),
        ("grad.weight", COMPUTE),
    ]


def test_dp_reduces_each_layer_in_the_last_micro_batch_alone() -> None:
    gpt = find_model("tiny-1m")
    program = program_of("dp=2,overlap=dp,mbs=1", gpt)
    reduces = [op for op in program.ops if op.stream == "dp"]
    owners = [op.name.partition(".")[0] for op in reduces]
    assert owners == ["l3", "l2", "l1", "l0", "embed"]
    assert place(program, reduces[0].name) > place(program, "m3.l3.qkv.grad.accumulate")
    whole = program_of("dp=2,overlap=none", gpt)
    assert sum(op.nbytes for op in reduces) == op_of(whole, "grads.reduce").nbytes


def test_a_llama_reads_queries_keys_and_values_from_bands_of_unequal_width() -> None:
    program = program_of("tp=2,y=2", ONE_LLAMA)
    rows, width = 8 * 16, 4
    assert program.layouts["l0.qkv.w"].bands == (16 * width, 8 * width, 8 * width)
    assert program.buffers["m0.l0.qkv.o"].shape == (rows, (8 + 4 + 4) * width)
    assert program.buffers["m0.l0.attention.o"].shape == (rows, 8 * width)
    assert op_of(program, "m0.l0.attention").flops == 4 * rows * 16 * 8 * width
    assert op_of(program, "m0.l0.rope").nbytes == 2 * rows * (8 + 4) * width * 2


def test_gate_and_up_are_one_linear_and_the_activation_is_half_as_wide() -> None:
    program = program_of("tp=2,y=2", ONE_LLAMA)
    up, swiglu = (op_of(program, f"m0.l0.{name}") for name in ("up.matmul", "swiglu"))
    assert up.attributes["n"] == 2 * 64 // 2
    assert program.buffers[swiglu.writes[0]].shape == (8 * 16, 64 // 2)


def test_an_rmsnorm_reduces_one_sum_per_token_and_a_layernorm_two() -> None:
    rows = 8 * 16
    for gpt, sums in ((ONE_LLAMA, 1), (ONE_LAYER, 2)):
        program = program_of("y=2", gpt)
        for name in ("norm1.reduce", "norm1.grad.sums.reduce"):
            assert op_of(program, f"m0.l0.{name}").nbytes == 4 * sums * rows


@pytest.mark.parametrize("gpt", [ONE_LLAMA, ONE_LAYER])
def test_norms_of_split_columns_divide_their_sums_by_the_whole_width(gpt: GPT) -> None:
    applied = (f"{gpt.norm}_apply", f"{gpt.norm}_grad_apply")
    ops = [op for op in program_of("y=4", gpt).ops if op.part.is_layer and op.kind in applied]
    assert [op.attributes["width"] for op in ops] == 4 * [32]


def test_without_biases_no_op_and_no_parameter_is_a_bias() -> None:
    program = program_of("tp=2,y=2,z=2", replace(ONE_LAYER, biases=False))
    assert not {"bias", "column_sum"} & {op.kind for op in program.ops}
    assert not any(name.endswith(".b") for name in program.layouts)


def test_attention_is_computed_alike_on_every_rank_of_y() -> None:
    program = program_of("y=4")
    assert op_of(program, "m0.l0.attention").replicas == 4
    assert op_of(program, "m0.l0.up.matmul").replicas == 1


@few_and_many(
    25,
    100,
    settings(),
    gpt=st.sampled_from(
        [ONE_LAYER, ONE_LLAMA, replace(ONE_LAYER, embedding_norm=True, dropout=0.1)]
    ),
    grid=st.tuples(*[st.sampled_from([1, 2])] * 4),
    micro=st.sampled_from([1, 2]),
    overlap=st.sets(st.sampled_from(OVERLAPS)),
    recompute=st.sampled_from(["none", "full", "selective", "full:1"]),
    attention=st.sampled_from(["flash", "unfused"]),
    rows=st.booleans(),
)
def test_every_program_is_well_formed(
    gpt: GPT,
    grid: tuple[int, ...],
    micro: int,
    overlap: set[str],
    recompute: str,
    attention: str,
    rows: bool,
) -> None:
    x, y, z, data = grid
    plan = Plan.of(
        tp=x,
        y=y,
        z=z,
        dp=data,
        batch=4,
        mbs=4 // (z * data * micro) or 1,
        overlap=tuple(switch for switch in OVERLAPS if switch in overlap),
        recompute=recompute,
        attention=attention,
        sp=rows and y == 1,
    )
    program = lower(gpt, plan)
    assert len({op.name for op in program.ops}) == len(program.ops)
    written = {name for name, buffer in program.buffers.items() if buffer.persistent}
    for op in program.ops:
        assert set(op.reads) <= written, f"{op.name} reads what nobody wrote"
        written |= set(op.writes)
    assert all(later < index for index, wait in enumerate(program.waits) for later in wait)
    blocking = lower(gpt, plan.changed(overlap=()))
    assert program.comm_bytes == blocking.comm_bytes
    assert program.hardware_flops == blocking.hardware_flops


@few_and_many(
    15,
    100,
    settings(),
    overlap=st.sets(st.sampled_from(OVERLAPS)),
    recompute=st.sampled_from(RECOMPUTES),
)
def test_no_buffer_is_freed_before_its_last_use_or_twice(overlap: set[str], recompute: str) -> None:
    switches = "+".join(sorted(overlap)) or "none"
    program = program_of(f"tp=2,z=2,dp=2,recompute={recompute},overlap={switches}")
    gone: set[str] = set()
    for op, freed in zip(program.ops, program.releases, strict=True):
        assert not gone & {*op.reads, *op.writes}
        assert not gone & set(freed)
        gone |= set(freed)
    transient = {name for name, buffer in program.buffers.items() if not buffer.persistent}
    assert gone == transient
