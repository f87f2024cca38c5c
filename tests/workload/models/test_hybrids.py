"""Hybrids of Mamba-2, attention, MLPs and experts: counted by hand, and refused where they cannot
be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.engine.whole_program import whole_program
from simulator.search.problem import SearchProblem, unproved
from tests.messages import names
from topologies.machine_files import load_machine
from workload.errors import ModelError, PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.models import mamba2, moe, windows
from workload.plan_text import parse_plan
from workload.stages import like_stages

# Mamba-2 of 4 heads, 8 wide, in 2 groups of 6 states; heads of attention are 8 wide.
FOUR = GPT.of(
    name="four",
    layers=4,
    hidden=32,
    heads=4,
    ffn=64,
    sequence=16,
    vocab=64,
    norm="rmsnorm",
    activation="squared_relu",
    positions="none",
    biases=False,
    pattern="M-*E",
    experts=4,
    topk=2,
    expert_ffn=16,
    shared_ffn=8,
    ssm_heads=4,
    ssm_width=8,
    ssm_state=6,
    ssm_groups=2,
    ssm_chunk=8,
)
USUAL: dict[str, Any] = {"name": "usual", "layers": 1, "hidden": 32, "heads": 4, "ffn": 64}
USUAL |= {"sequence": 16, "vocab": 64}
PLAIN = "mbs=2,batch=2,overlap=none"


def test_parameters_of_each_layer_by_hand() -> None:
    """In: z and x of 32, B and C of 12, dt of 4. Four taps and a bias of 56 columns, three numbers
    of each head, a gain of 32 columns."""
    mamba = 32 * (32 + 32 + 12 + 12 + 4) + 5 * 56 + 3 * 4 + 32 + 32 * 32
    mlp, attention = 2 * 32 * 64, 4 * 32 * 32
    experts = 32 * 4 + 2 * 32 * 8 + 4 * 2 * 32 * 16
    ends = 64 * 32 + 32  # the tied table and the last norm
    assert FOUR.parameters == mamba + mlp + attention + experts + 4 * 32 + ends
    assert FOUR.parameters - FOUR.active_parameters == 2 * 2 * 32 * 16


def test_published_counts_of_parameters_are_those_of_the_presets() -> None:
    """31.6 billion, 3.6 of which a token passes (Nemotron 3 Nano, its technical report); 8 and 56
    billion in 24 or 54 layers of Mamba-2, 4 or 10 of attention (Nemotron-H, Table 1)."""
    nano = find_model("nemotron-3-nano")
    assert nano.parameters == 31_577_940_288
    assert round(nano.active_parameters / 1e9, 1) == 3.6
    assert [nano.pattern.count(letter) for letter in "ME*-"] == [23, 23, 6, 0]
    for name, parameters, layers in (("8b", 8.1e9, [24, 4, 24]), ("56b", 56.3e9, [54, 10, 54])):
        gpt = find_model(f"nemotron-h-{name}")
        assert gpt.parameters == pytest.approx(parameters, rel=2e-3)
        assert [gpt.pattern.count(letter) for letter in "M*-"] == layers


def test_nemotron_3_super_has_the_parameters_of_its_checkpoint() -> None:
    """123,611,033,088 elements (Megatron-Bridge's verification card), of which the module for
    further tokens has a layer of attention, one of experts, a linear of two streams and three
    norms, which its two depths share; 120.6 billion without it, 12.8 of which a token passes."""
    gpt = find_model("nemotron-3-super")
    attention = 4096 * (4096 + 2 * 256) + 4096 * 4096 + 4096
    experts = 4096 * 512 + 512 + 2 * 4096 * 5376 + 2 * 4096 * 1024 + 512 * 2 * 1024 * 2688 + 4096
    module = attention + experts + 2 * 4096**2 + 3 * 4096
    assert gpt.parameters == 123_611_033_088 == 120_668_707_840 + module
    assert gpt.active_parameters == 12_770_237_440


def test_rows_for_latent_experts_travel_with_their_columns_alone() -> None:
    """32 rows go to two experts each with 8 columns in place of 32, the shared MLP keeps 32."""
    gpt = FOUR.changed(expert_latent=8)
    assert gpt.parameters == FOUR.parameters - 4 * 2 * 24 * 16 + 2 * 32 * 8
    program = lower(gpt, parse_plan("mbs=2,batch=4,dp=2,ep=2,overlap=none"))
    sent = [op for op in program.ops if op.label in ("dispatch.exchange", "combine.exchange")]
    assert [program.buffers[op.reads[0]].shape for op in sent] == [(64, 8), (64, 8)]
    ops = {op.label: op for op in program.ops if "latent" in op.label}
    assert ops["fc1_latent_proj.matmul"].mnk == (32, 8, 32)
    again = lower(gpt, parse_plan(f"{PLAIN},recompute=moe"))
    assert again.model_flops == gpt.model_flops(2)
    recomputed = {op.label for op in again.ops if op.is_recomputed}
    assert "fc1_latent_proj.matmul" in recomputed
    assert not {"fc2_latent_proj.matmul", "shared.down.matmul"} & recomputed


def test_plans_that_do_not_know_latent_columns_are_refused() -> None:
    with pytest.raises(PlanCannotRunError, check=names("y=2", "four", "expert_latent=8")):
        lower(FOUR.changed(expert_latent=8), parse_plan(f"{PLAIN},y=2"))
    with pytest.raises(ModelError, check=names("expert_latent=8", "biases")):
        GPT.of(**USUAL, biases=True, experts=4, topk=2, expert_ffn=16, expert_latent=8)


def test_a_scan_counts_products_within_chunks_of_8_and_with_states() -> None:
    """C B^T: 2 x 8 x 6 in 2 groups; with x: 2 x 8 x 8 in 4 heads; states: 2 x 6 x 8 in 4, twice."""
    assert mamba2.scan_flops(FOUR) == 2 * 96 + 4 * 128 + 2 * 4 * 96
    assert mamba2.scan_flops(replace(FOUR, sequence=4)) == 2 * 48 + 4 * 64 + 2 * 4 * 96
    program = lower(FOUR, parse_plan(f"{PLAIN},tp=2"))
    assert program.model_flops == FOUR.model_flops(2)
    scan = next(op for op in program.ops if op.kind == "ssd")
    assert scan.flops == 2 * 16 * mamba2.scan_flops(FOUR) // 2
    assert (scan.attributes["heads"], scan.attributes["groups"]) == (2, 1)
    assert windows.keys_of_layers(FOUR) == 16


def test_ranks_of_context_trade_tokens_for_heads_around_convolution_and_scan() -> None:
    """16 of 32 rows with 92 columns for all rows with 46, and 16 of 32 columns back; the norm works
    on a rank's own rows, and weights of all heads stay where they are."""
    program = lower(FOUR, parse_plan(f"{PLAIN},cp=2"))
    assert program.model_flops == FOUR.model_flops(2)
    ops = {op.label: op for op in program.ops if op.block.part.layer == 0}
    sent = {label: op.nbytes for label, op in ops.items() if op.kind == "all_to_all"}
    there, back = 16 * 92 * 2, 16 * 32 * 2
    assert sent == {
        "ssd.in.exchange": there,
        "ssd.out.exchange": back,
        "ssd.grad.out.exchange": back,
        "ssd.grad.in.exchange": there,
    }
    shapes = {
        label: [program.buffers[each].shape for each in op.reads] for label, op in ops.items()
    }
    assert shapes["conv"] == [(32, 46), (4, 56), (56,)]
    assert shapes["ssd"] == [(32, 28), (32, 46), (4,), (4,), (4,)]
    assert shapes["ssd_norm"] == [(16, 32), (32,)]
    assert ops["ssd"].flops == 16 * mamba2.scan_flops(FOUR)
    how = ops["ssd"].attributes
    assert (how["heads"], how["groups"], how["rows"], how["spread"]) == (2, 1, 32, ("cp",))
    assert ops["ssd_norm"].attributes["groups"] == 2


@pytest.mark.parametrize(
    ("words", "widths"), [("", [32, 32, 32, 32, 32, 92]), (",cp=2", [16, 32, 32, 32, 32, 46])]
)
def test_what_is_kept_of_a_layer_is_what_the_fused_kernels_keep(
    words: str, widths: list[int]
) -> None:
    """Its input normed; z, x, B, C and dt; the scan before its gate, behind it, and normed; and the
    stream behind the layer. On ranks of context the scan's are halves of the columns."""
    gpt = FOUR.changed(layers=1, pattern="M", experts=0, topk=0, expert_ffn=0, shared_ffn=0)
    program = lower(gpt, parse_plan(f"{PLAIN},precision=bf16{words}"))
    used = {name for op in program.ops if op.block.phase == "backward" for name in op.reads}
    made = {name for op in program.ops if op.block.phase == "forward" for name in op.writes}
    kept = {name: program.buffers[name] for name in used & made if ".l0." in name}
    found = sorted(each.shape[1] for each in kept.values() if "stats" not in each.name)
    assert found == widths
    assert not any("conv" in name for name in kept)


def test_every_split_holds_all_parameters() -> None:
    for words in ("tp=2,y=2", "z=2,dp=2,zero=3", "cp=2,dp=2,zero=3", "tp=2,dp=4,ep=4,etp=1"):
        text = f"mbs=1,batch=8,{words},sp={words.startswith('tp=2,d')}"
        plan = parse_plan(text.replace("True", "true").replace("False", "false"))
        buffers = lower(FOUR, plan).buffers.values()
        held = [each for each in buffers if each.role == "parameters"]
        assert sum(b.elements * plan.grid.ranks / b.replicas for b in held) == FOUR.parameters


def test_turns_of_layers_are_folded_and_stages_of_other_layers_are_told_apart() -> None:
    gpt = replace(FOUR, layers=80, pattern="M-*E" * 20)
    plan = parse_plan(PLAIN)
    folded, whole = whole_program(gpt, plan), lower(gpt, plan)
    assert len(folded.program.ops) < len(whole.ops) == folded.columns.count
    assert folded.peak(0) == whole.peak
    twice = replace(FOUR, layers=8, pattern="M-M-M-*E")
    assert like_stages(twice, parse_plan("pp=4,batch=4")) == [0, 1, 1, 3]
    assert [moe.has_experts(twice, layer) for layer in (6, 7)] == [False, True]


def test_parts_that_run_again_are_not_kept_from_the_forward_pass() -> None:
    """32 rows in bf16: four norms' outputs of 32 columns, each with a number in fp32, an MLP's two
    tensors of 64, the activation of two choices of experts 16 wide."""

    def kept(recompute: str) -> int:
        program = lower(FOUR, parse_plan(f"{PLAIN},recompute={recompute}"))
        first = next(at for at, op in enumerate(program.ops) if op.block.phase == "backward")
        return program.memory[first].parts["activations"]

    assert kept("none") - kept("layernorm") == 4 * 32 * (32 * 2 + 4)
    assert kept("none") - kept("mlp") == 2 * 32 * 64 * 2
    assert kept("none") - kept("moe") > kept("none") - kept("moe_act") == 2 * 32 * 16 * 2


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ("cp=4", ("tp*cp=4", "ssm_groups=2")),
        ("tp=2,cp=2", ("tp*cp=4", "ssm_groups=2", "cp=1")),
        ("optimizer=mezo", ("optimizer=mezo",)),
        ("tp=4", ("tp=4", "ssm_groups=2")),
    ],
)
def test_plans_that_do_not_know_the_layers_are_refused(plan: str, named: tuple[str, ...]) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        lower(FOUR, parse_plan(f"batch=4,mbs=1,{plan}"))


def test_a_chunk_must_divide_the_sequence_unless_it_is_longer() -> None:
    with pytest.raises(PlanCannotRunError, check=names("ssm_chunk=8", "sequence=12")):
        lower(replace(FOUR, sequence=12), parse_plan(PLAIN))
    lower(replace(FOUR, sequence=6), parse_plan(PLAIN))


def test_no_bounds_are_known_of_patterns() -> None:
    assert "pattern" in unproved(SearchProblem(FOUR, 8, 8), load_machine("dgx-h100"))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"pattern": "M-*"}, ("pattern", "3", "layers=4")),
        ({"pattern": "M-*X"}, ("pattern", "'X'", "M * - E")),
        ({"pattern": "M-*-"}, ("experts=4", "E", "pattern")),
        ({"pattern": ""}, ("ssm_heads=4", "pattern")),
        ({"biases": True}, ("biases=true", "pattern", "biases=false")),
        ({"window": 4}, ("window=4", "pattern", "window=0")),
        ({"dense_layers": 1}, ("dense_layers=1", "pattern", "dense_layers=0")),
        ({"mtp_layers": 1}, ("mtp_layers=1", "pattern", "mtp_pattern")),
        ({"ssm_state": 0}, ("pattern", "layers", "ssm_state")),
        ({"ssm_groups": 3}, ("ssm_groups=3", "ssm_heads=4")),
    ],
)
def test_fields_that_do_not_go_together_are_refused(
    fields: dict[str, object], named: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError, check=names(*named)):
        FOUR.changed(**fields)


def test_every_linear_of_a_hybrid_multiplies_in_the_fp8_of_its_stack_and_no_scan_does() -> None:
    """Mamba's two, the MLP's, attention's and the shared expert's: three products each; the routed
    experts' two likewise. The classifier and the router stay in 16 bits."""
    program = lower(FOUR, parse_plan(f"{PLAIN},recipe=fp8"))
    products = [op for op in program.ops if op.kind == "matmul" and op.dtype == "fp8"]
    assert len(products) == 3 * (2 + 2 + 2 + 2)
    assert sum(op.kind == "grouped_matmul" and op.dtype == "fp8" for op in program.ops) == 3 * 2
    others = {op.label for op in program.ops if op.kind == "matmul" and op.dtype != "fp8"}
    assert {label.partition(".")[0] for label in others} == {"head", "router"}
    assert {op.dtype for op in program.ops if op.kind in ("ssd", "ssd_grad")} == {"bf16"}
