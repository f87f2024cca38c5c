"""The time of ops as a software stack has them: fused, in fp8, at another pace, issued slowly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.analytic import AnalyticCosts, matmul_s, share_of_bf16
from simulator.costs.attention import attention_s, padded
from simulator.costs.kernel_launch import launch_bound
from simulator.costs.kernels import Kernels
from tests.blocks import BLOCK
from topologies.hardware.attention import Attention, Pass, Shape
from topologies.hardware.device import Device
from topologies.machine_files import load_machine
from workload.lowering.recipes.stack_casts import cast_by_stack
from workload.op import BACKWARD, FORWARD, STEP, Block, Buffer, Op, layer_part
from workload.op_attributes import Attributes
from workload.passes.stack import StackBehaviour, with_behaviour

SHAPE: Attributes = {"m": 4096, "n": 4096, "k": 4096, "form": "NN"}
IN_LAYER = Block(0, layer_part(3), FORWARD)
LINEAR = Op("up", "matmul", ("a", "w"), ("o",), IN_LAYER, nbytes=6 * 4096**2, flops=2 * 4096**3,
            attributes=SHAPE, part=layer_part(3), label="up.matmul")  # fmt: skip
ADD = Op(
    "down", "dropout", (), (), IN_LAYER, nbytes=10**8, part=layer_part(3), label="down.dropout"
)


def test_a_fused_op_takes_no_time() -> None:
    machine = load_machine("dgx-a100")
    (fused,), _ = with_behaviour([ADD], {}, StackBehaviour(fused=("down.dropout",)))
    assert AnalyticCosts(machine).seconds(fused) == 0
    assert AnalyticCosts(machine).seconds(ADD) > 0


def test_fp8_runs_a_layers_linear_at_its_rate_and_casts_its_input_but_not_the_classifier() -> None:
    machine = load_machine("dgx-h100")
    device, costs = machine.device, AnalyticCosts(machine)
    source = Buffer("a", (4096, 4096), "bf16", "activations")
    (cast, fp8), _ = cast_by_stack([LINEAR], {"a": source})
    cast_s = 3 * 4096 * 4096 / (device.memory_efficiency * device.memory_bytes_per_s)
    assert costs.seconds(cast) == pytest.approx(cast_s)
    deep = 4096 / (4096 + 101)  # the share of a deep one's gain
    gain = 1979 / 989 * 0.88 * deep
    launch_s = device.matmul.launch_s
    expected = launch_s + (costs.seconds(LINEAR) - launch_s) / gain
    assert costs.seconds(fp8) == pytest.approx(expected)


def test_a_pace_of_four_fifths_makes_every_op_last_five_fourths() -> None:
    machine = load_machine("dgx-a100")
    slow = AnalyticCosts(machine, 1, Kernels(pace=0.8))
    assert slow.seconds(ADD) == pytest.approx(1.25 * AnalyticCosts(machine).seconds(ADD))


def test_a_norm_of_several_kernels_goes_through_memory_more_often() -> None:
    machine = load_machine("dgx-a100")
    norm = replace(ADD, kind="rmsnorm")
    one = AnalyticCosts(machine).seconds(norm) - machine.device.launch_s
    (eager,), _ = with_behaviour([norm], {}, StackBehaviour(passes=(("rmsnorm", 9.0),)))
    assert AnalyticCosts(machine).seconds(eager) == pytest.approx(machine.device.launch_s + 9 * one)


def test_a_host_issues_each_of_the_kernels_that_an_op_is_made_of() -> None:
    costs = AnalyticCosts(load_machine("dgx-a100"), 1, Kernels(host_s=7e-5))
    assert costs.host_s(ADD) == 7e-5
    assert costs.host_s(replace(ADD, kind="softmax", launches=5)) == pytest.approx(35e-5)
    assert costs.host_s(replace(ADD, launches=0)) == 0


def test_kernels_whose_bytes_are_counted_elsewhere_take_their_launches() -> None:
    machine = load_machine("dgx-a100")
    slices = Op("s", "launches", (), (), attributes={"count": 96})
    expected = 96 * machine.device.launch_s
    assert AnalyticCosts(machine).seconds(slices) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("form", "m", "n", "k", "share"),
    [
        ("NT", 2048, 50304, 1024, 1.0),
        ("NT", 2048, 50257, 1024, 0.45),  # the rows of the product are odd
        ("NT", 2047, 50304, 1024, 1.0),  # nothing has rows of m
        ("TN", 50257, 1024, 2048, 0.45),  # the first operand is stored by its columns
        ("NN", 2048, 1024, 6282, 0.8),
    ],
)
def test_a_matmul_with_rows_that_begin_at_odd_places_keeps_a_share_of_its_rate(
    form: str, m: int, n: int, k: int, share: float
) -> None:
    device = load_machine("dgx-a100").device
    attributes: Attributes = {"form": form, "m": m, "n": n, "k": k}
    smooth = replace(device, matmul=replace(device.matmul, unaligned={}))
    for dtype in ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"):
        op = replace(LINEAR, attributes=attributes, flops=2 * m * n * k, nbytes=0, dtype=dtype)
        kernel_s = matmul_s(smooth, 312e12, op) - device.matmul.launch_s
        own = 1.0 if dtype == "fp32" else share  # nothing is loaded 16 bytes at once
        expected = device.matmul.launch_s + kernel_s / own
        assert matmul_s(device, 312e12, op) == pytest.approx(expected)


def test_a_block_lasts_at_least_as_long_as_the_host_takes_to_issue_its_ops() -> None:
    ops = [replace(ADD, name=f"op{number}") for number in range(4)]
    assert launch_bound(ops, [10, 0, 20, 30], [5] * 4) == [10, 0, 20, 30]
    assert launch_bound(ops, [10, 0, 20, 30], [30] * 4) == [20, 0, 30, 40]
    sums = [replace(op, kind="all_reduce") if at == 2 else op for at, op in enumerate(ops)]
    # 40 for each of three, of which one is a sum: 60 are missing
    assert launch_bound(sums, [10, 0, 20, 30], [40] * 4) == [40, 0, 20, 60]
    # the third is three kernels: 150 for five, 90 are missing
    assert launch_bound(ops, [10, 0, 20, 30], [30, 0, 90, 30]) == [40, 0, 50, 60]
    # 29 are missing: two kernels get 10 of them, and the last one 9
    assert launch_bound(ops, [10, 0, 20, 31], [30] * 4) == [20, 0, 30, 40]
    closing = [replace(op, block=STEP) for op in ops]
    assert launch_bound(closing, [1, 1, 1, 1], [100] * 4) == [1, 1, 1, 1]


def test_heads_of_two_widths_are_not_taken_for_each_other_though_they_do_as_much() -> None:
    """Of 80 columns a kernel works through 96, of 64 through these alone."""
    machine = load_machine("dgx-a100")
    narrow = replace(ADD, kind="attention", nbytes=0, flops=10**12, attributes={"width": 64})
    costs, launch_s = AnalyticCosts(machine), machine.device.launch_s
    narrow_s = costs.seconds(narrow) - launch_s
    wide_s = costs.seconds(replace(narrow, attributes={"width": 80})) - launch_s
    assert wide_s == pytest.approx(1.2 * narrow_s)


def test_blocks_and_streams_make_up_for_no_time_that_the_host_lacks_in_another() -> None:
    """Two kernels of 10 and 30 ticks that take 40 each to issue: 40 are missing, however long the
    gather beside them and the block behind them last."""
    first, second = (replace(ADD, name=name) for name in ("a", "b"))
    gather = replace(ADD, kind="all_gather", stream="z")
    longer = replace(ADD, block=Block(0, layer_part(3), BACKWARD))
    ops = [first, gather, second, longer]
    assert launch_bound(ops, [10, 90, 30, 500], [40] * 4) == [30, 90, 50, 500]


def test_a_stacks_own_attention_reaches_its_shares() -> None:
    """Forward at half of the peak and backward at a quarter."""
    machine = load_machine("dgx-a100")
    device, peak = machine.device, machine.device.peak_flops_per_s["bf16"]
    forward = Op("f", "attention", (), (), BLOCK, flops=4 * 10**12)
    backward = Op("b", "attention_grad", (), (), BLOCK, flops=8 * 10**12)
    own = AnalyticCosts(machine, 1, Kernels(attention=(0.5, 0.25)))
    assert own.seconds(forward) - device.launch_s == pytest.approx(2e12 / (0.5 * peak))
    assert own.seconds(backward) - device.launch_s == pytest.approx(5e12 / (0.25 * peak))


def test_rms_norms_and_swiglu_reach_what_layer_norms_and_gelu_reach() -> None:
    machine = load_machine("dgx-a100")
    shares = {"layernorm": 0.5, "gelu_grad": 0.25}
    known = replace(machine, device=replace(machine.device, efficiency_of=shares))
    costs = AnalyticCosts(known)
    rate, launch_s = machine.device.memory_bytes_per_s, machine.device.launch_s
    for kind, share in (("rmsnorm", 0.5), ("layernorm", 0.5), ("swiglu_grad", 0.25)):
        seconds = costs.seconds(replace(ADD, kind=kind))
        assert seconds == pytest.approx(launch_s + ADD.nbytes / (share * rate))


def test_fused_attention_works_through_the_next_width_that_it_has_a_kernel_for() -> None:
    assert [padded(width) for width in (64, 80, 160, 512)] == [1, 96 / 80, 1, 1]
    assert padded(168) == 192 / 168


def attention(width: int, sequence: int, heads: int, kind: str = "attention") -> Op:
    flops = (4 if kind == "attention" else 8) * heads * sequence * sequence * width
    return Op("a", kind, (), (), flops=flops, attributes={"width": width, "sequence": sequence})


# A device of 4 units whose blocks do 128 rows, at 100 TFLOP/s; launches and memory cost nothing.
PLAIN = Pass(softmax=0.0, wide=1.0, uneven=1.0, memory=0.0)
SMALL = Device(
    "small", 1e9, 1e12, 1.0, 0.0, load_machine("dgx-a100").device.matmul,
    Attention(1.0, 1.0, Shape(4, 128, PLAIN, PLAIN)), {"bf16": 1e14},
)  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "sequence", "causal", "square"),
    [
        (2, 256, False, 1.0),  # four blocks on four units
        (3, 256, False, 4 / 3),  # six blocks take two waves of four
        (2, 512, False, 1.0),
        (32, 512, True, (1 + 1 / 4) / 2 * 32.5 / 32),  # 32 waves, and half a block at the end
        (4, 512, True, (1 + 1 / 4) / 2 * 4.5 / 4),  # four blocks of 1 to 4 tiles on each unit
        (1, 512, True, (1 + 1 / 4) / 2 * 1.6),  # as long as the longest block, 4 tiles of 2.5
    ],
)
def test_blocks_of_attention_fill_a_device_in_waves_and_the_diagonal_is_worked_whole(
    heads: int, sequence: int, causal: bool, square: float
) -> None:
    op = attention(128, sequence, heads)
    seconds = attention_s(SMALL, 1e14, op, causal)
    assert seconds == pytest.approx(op.flops * square / 1e14)


@pytest.mark.parametrize(
    ("width", "longer"),
    [
        (128, 1.0),
        (64, 96 / 64 * 128 / 160),  # the softmax of 32 columns weighs more
        (160, 192 / 160 * 128 / 160 / 0.8),  # smaller tiles
        (80, 96 / 80 * (128 / 96) * (128 / 160) / 0.5),  # as 96 columns, and masked
    ],
)
def test_the_rate_of_attention_follows_from_the_width_of_a_head(width: int, longer: float) -> None:
    own = Pass(softmax=32.0, wide=0.8, uneven=0.5, memory=0.0)
    device = replace(SMALL, attention=Attention(1.0, 1.0, Shape(4, 128, own, own)))
    op = attention(width, 256, 4)
    seconds = attention_s(device, 1e14, op, causal=False)
    assert seconds == pytest.approx(op.flops / 1e14 * longer)


def test_values_of_another_width_count_by_themselves() -> None:
    """Keys of 192 and values of 128 columns: the mean of 160 is what the softmax weighs, and the
    backward does three products of the one width and two of the other."""
    own = Pass(softmax=32.0, wide=1.0, uneven=1.0, memory=0.0)
    device = replace(SMALL, attention=Attention(1.0, 1.0, Shape(4, 128, own, own)))
    how: Attributes = {"width": 192, "value_width": 128, "sequence": 256}
    flops = 2 * 4 * 256 * 256 * (192 + 128)
    op = Op("op", "attention", (), (), flops=flops, attributes=how)
    longer = (128 / 160) / (160 / 192)
    assert attention_s(device, 1e14, op, causal=False) == pytest.approx(flops / 1e14 * longer)
    grad = Op("op", "attention_grad", (), (), flops=2 * flops, attributes=how)
    work = 2 * 4 * 256 * 256 * (3 * 192 + 2 * 128)
    assert attention_s(device, 1e14, grad, causal=False) == pytest.approx(work / 1e14 * longer)


def test_the_gradients_of_attention_move_bytes_and_launch_three_kernels() -> None:
    """40 bytes for each of 2 * 256 * 128 elements at half of 1 TB/s, and three launches of 1 us."""
    own = replace(PLAIN, memory=40.0)
    attended = Attention(1.0, 0.5, Shape(4, 128, PLAIN, own))
    device = replace(SMALL, attention=attended, memory_efficiency=0.5, launch_s=1e-6)
    op = attention(128, 256, 2, "attention_grad")
    work_s = 1.25 * op.flops / 0.5e14
    expected = 3e-6 + work_s + 40 * 2 * 256 * 128 / 0.5e12
    assert attention_s(device, 1e14, op, causal=False) == pytest.approx(expected)


def test_sequences_of_two_lengths_are_not_taken_for_each_other_though_they_do_as_much() -> None:
    costs = AnalyticCosts(load_machine("dgx-a100"))
    long, short = attention(128, 4096, 4), attention(128, 1024, 64)
    assert long.flops == short.flops
    assert costs.seconds(long) != costs.seconds(short)


def test_the_shapes_of_the_machines_kernels_are_not_those_of_a_stacks_own() -> None:
    """Half of 312 TFLOP/s at half of the square, however few heads there are."""
    machine = load_machine("dgx-a100")
    own = AnalyticCosts(machine, 1, Kernels(attention=(0.5, 0.25)))
    op = attention(128, 1024, 1)
    expected = machine.device.launch_s + 0.5 * op.flops / 156e12
    assert own.seconds(op) == pytest.approx(expected)


def test_four_bit_matmuls_have_a_share_of_their_own_where_a_device_has_one() -> None:
    """0.5 for 4 bits and 0.8 for 8, of what bf16 reaches; of a device without, 0.8 for both."""
    known, k = load_machine("dgx-b200").device, float(LINEAR.attributes["k"])
    for own, expected in ((0.5, 0.5), (0.0, 0.8)):
        matmul = replace(known.matmul, fp8=0.8, nvfp4=own, fp8_k0=0.0)
        device = replace(known, matmul=matmul)
        assert share_of_bf16(device, replace(LINEAR, dtype="nvfp4")) == expected
        assert share_of_bf16(device, replace(LINEAR, dtype="mxfp8")) == 0.8
        deep = replace(device, matmul=replace(matmul, fp8_k0=k))
        assert share_of_bf16(deep, replace(LINEAR, dtype="nvfp4")) == expected / 2


def test_norms_of_as_many_bytes_and_other_widths_are_two_kernels() -> None:
    """A stack has a kernel of its own for one of both widths."""
    machine = load_machine("dgx-h100")
    shares = {**machine.device.efficiency_of, "general_norm": 0.1}
    slow = replace(machine, device=replace(machine.device, efficiency_of=shares))
    norms = [
        Op(name, "rmsnorm", (), (), IN_LAYER, nbytes=10**8, attributes={"columns": columns})
        for name, columns in (("tuned", 4096), ("general", 1000))
    ]
    costs = AnalyticCosts(slow, kernels=Kernels(tuned_norms=(4096,)))
    tuned_s, general_s = map(costs.seconds, norms)
    assert general_s > 2 * tuned_s
