"""Kernels that put queries, keys and values of latent attention together: their bytes by stack, and
the host's time."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from simulator.predict import predict
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from tools.fit_host_time import LATENT, kernels_of_latent_attention
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.lowering import lower

PLAIN = 192 + 256 + 512  # elements of a row and head: queries, keys and values, and what is written
# Queries' turned part and its joins; queries, keys and values written again. Backward the
# turned part; the parts of queries, and of keys and values, joined; the sum over heads.
UNFUSED = (128 + 192 + 128 + 128 + 192 + 128) + 384 + 320 + 256
UNFUSED_GRAD = (128 + 128 + 64 + 128 + 192 + 256 + 192 + 448) + 384 + 512 + 64
FUSED = 128 + 576  # in place of queries, and from what leads up to keys and values


@pytest.mark.parametrize(
    ("stack", "forward", "backward", "kernels"),
    [
        ("megatron-core", UNFUSED, UNFUSED_GRAD, 10),
        ("primus", UNFUSED, UNFUSED_GRAD, 10),
        ("nemo+unfused", UNFUSED, UNFUSED_GRAD, 10),
        ("nemo", FUSED, FUSED, 1),
        ("nemo+deepep+graphs=attn", FUSED, FUSED, 1),
    ],
)
def test_latent_attention_moves_the_bytes_of_its_stacks_kernels(
    stack: str, forward: int, backward: int, kernels: int
) -> None:
    own = load_stack(stack).own_kernels
    assert own["passes"]["latent_qkv"] == round(forward / PLAIN, 2)
    assert own["passes"]["latent_qkv_grad"] == round(backward / PLAIN, 2)
    assert [own["launches"].get(kind, 1) for kind in LATENT] == [kernels, kernels]


def test_the_program_moves_a_row_and_head_once_and_the_positions_of_keys_besides() -> None:
    """DeepSeek-V2-Lite has 16 heads: for a row 16 x 960 elements and 64 of the positions of keys,
    2 bytes each."""
    gpt = replace(find_model("deepseek-v2-lite"), sequence=8)
    job = job_of(gpt, "mbs=1", load_stack("nemo"), devices=1, batch=1)
    ops = [op for op in lower(gpt, job.plan).ops if op.kind in LATENT]
    assert {op.nbytes for op in ops} == {8 * 2 * (16 * PLAIN + 64)}


def test_a_host_takes_longer_where_rope_and_routing_are_not_fused() -> None:
    """Eighteen and more ops of 113 us for each of two layers' passes, forward and backward."""
    gpt = replace(find_model("moonlight-16b"), layers=2, sequence=256)
    machine, steps = load_machine("dgx-h100"), []
    for name in ("nemo", "nemo+unfused"):
        job = job_of(gpt, "dp=8,ep=8,mbs=1", load_stack(name), devices=8, batch=8)
        steps.append(predict(job.gpt, job.plan, machine, stack=job.stack).step_s)
    more = 2 * (9 + 9) * 113e-6  # of latent attention in two layers
    routed = 2 * 113e-6  # of the one layer with experts, forward; as much backward
    assert more <= steps[1] - steps[0] <= more + 2 * routed + 1e-4


@pytest.mark.slow
def test_the_kernels_of_latent_attention_are_the_median_of_small_runs() -> None:
    given = load_stack("megatron-core").own_kernels["launches"]
    found = round(statistics.median(kernels_of_latent_attention().values()))
    assert [given[kind] for kind in LATENT] == [found, found]
