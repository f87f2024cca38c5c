"""Attention's rate in long sequences, by a table of cuDNN's kernels on Hopper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.attention import REFERENCE, Halves, attention_s
from simulator.stacks import load_stack
from tools.fit_attention_lengths import fit, points
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.op import CAUSAL, Op
from workload.op_attributes import Attributes
from workload.plan import Plan

H100 = load_machine("dgx-h100")
PEAK = 989e12
PLAN = Plan(dp=8, batch=8, mbs=1)


def halves_of(stack: str) -> Halves | None:
    return load_stack(stack).kernels(find_model("llama3-8b"), PLAN, H100).halves


def attention(sequence: int, *, masked: bool = True, grad: bool = False) -> Op:
    """A sequence of 64 heads of 128 columns, the whole square counted, backward twice."""
    flops = 4 * 64 * 128 * sequence**2 * (2 if grad else 1)
    about: Attributes = {"sequence": sequence, "width": 128, CAUSAL: masked}
    return Op("a", f"attention{'_grad' * grad}", (), (), attributes=about, flops=flops)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_time_over_length_goes_as_the_table_does(masked: bool, grad: bool) -> None:
    """Over that of 8,192 tokens; the rate at one length is the stack's, not the table's."""
    halves = halves_of("megatron-core")
    assert halves is not None
    lengths, times = points("yes" if masked else "no", "backward" if grad else "forward")
    ours = [halves.slowdown(attention(int(s), masked=masked, grad=grad)) for s in lengths]
    for mine, measured in zip(ours, times, strict=True):
        assert mine / ours[2] == pytest.approx(measured / times[2], rel=0.07)


def test_the_halves_of_stacks_are_those_of_the_fit() -> None:
    halves = halves_of("megatron-core")
    assert halves is not None
    found = [fit(masked, way)[0] for masked in ("yes", "no") for way in ("forward", "backward")]
    assert [*halves.masked, *halves.unmasked] == pytest.approx(found, abs=0.5)


def test_the_stack_s_shares_are_those_of_the_reference() -> None:
    halves, gpt = halves_of("megatron-core"), find_model("llama3-8b")
    kernels = load_stack("megatron-core").kernels(gpt, PLAN, H100)
    assert halves is not None
    assert kernels.attention == (0.53, 0.42)
    assert halves.slowdown(attention(REFERENCE)) == 1.0
    assert halves.slowdown(attention(131072)) < 0.91
    assert halves.slowdown(attention(2048)) > 1.1


def test_kernels_of_a_machine_windows_and_documents_know_nothing_of_it() -> None:
    assert halves_of("nemo@24.05") is None
    assert halves_of("torchtitan") is None
    op, halves = attention(2048), Halves((1e4, 1e4), (1e4, 1e4))
    shaped = H100.device
    assert attention_s(shaped, PEAK, op, halves=halves) == attention_s(shaped, PEAK, op)
    every: tuple[Attributes, ...] = ({"window": 512}, {"documents": "1024+2x512"})
    for limits in every:
        limited = replace(op, attributes={**op.attributes, **limits})
        assert halves.slowdown(limited) == 1.0
