"""How long a host takes to issue an op of Megatron-Core: what `host_with_experts` of the stack is.

Megatron-LM's continuous integration trains models of 12 layers of width 512, whose kernels are so
short that the host alone sets the pace. Each such run without experts, on one node of eight GPUs or
two of four, gives the time for an op of the program at which it is predicted as it was measured;
the median of a GPU's runs stands for its host. Runs with experts, whose routing and permutation are
not fused, then tell how many kernels these are, and runs with latent attention how many ops' time
its rope takes that is not fused. No published run has a part in any. Source:
github.com/NVIDIA/Megatron-LM, tests/functional_tests/test_cases, golden values
(`validation/memory/golden_runs.py`).

    python -m tools.fit_host_time
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click

from simulator.predict import predict
from simulator.stacks import load_stack
from simulator.stacks.job import Job, job_of
from topologies.errors import SimgptError
from topologies.session import in_session
from validation.memory.golden_runs import STACK, GoldenRun, golden_runs

LAYERS, DEVICES = "12", "8"
ASSUMED_S = (
    20e-6,
    60e-6,
)  # both above what any op takes on the device: steps grow linearly from there
UNLIKE = "frozen"  # tests that train a part of the weights
FUSED = "moe-permute-fusion=True"
HOSTS = ("H100", "GB200")  # of the runs with experts that count: those of machines in use today
# Runs with latent attention, and their sizes, which the table of runs has not: model_config.yaml of
# that case of NVIDIA/Megatron-LM@d98e8a6.
LATENT_CASE = re.compile(r"gpt/gpt3_mcore_te_tp2_pp2_mla")
LATENT_SIZES: dict[str, Any] = {
    **{"q_rank": 192, "kv_rank": 64, "head_width": 16, "rope_width": 8, "kv_heads": 0},
    **{"positions": "rope", "norm": "rmsnorm", "biases": False},
}
LATENT = ("latent_qkv", "latent_qkv_grad")
TRIED = (11, 21)  # kernels with which the host is slower than the device


@in_session
def host_times() -> dict[str, list[float]]:
    """Seconds for an op by the GPU of a run, one for each run."""
    found: dict[str, list[float]] = {}
    for run in golden_runs():
        if _is_bound_by_host(run):
            found.setdefault(run.cells["platform_gpu"], []).extend(_host_s(run))
    return found


def _is_bound_by_host(run: GoldenRun) -> bool:
    cells = run.cells
    small = cells["layers"] == LAYERS and cells["gpus"] == DEVICES and not cells["experts"]
    plain = cells["cp"] in ("", "1") and cells["fsdp"] == "none" and UNLIKE not in cells["case"]
    return small and plain and bool(cells["step_s_median"])


def _host_s(run: GoldenRun) -> Iterator[float]:
    """The time for an op at which the run's step is as it was measured."""
    try:
        job, machine = run.job, run.machine
    except SimgptError:
        return
    steps = []
    for each_s in ASSUMED_S:
        host = dict.fromkeys(("a100", "h100", "b200", "gb200"), f"{each_s * 1000000.0} us")
        stack = replace(job.stack, own_kernels={**job.stack.own_kernels, "host": host})
        steps.append(predict(job.gpt, job.plan, machine, stack=stack).step_s)
    (first, second), (low, high) = steps, ASSUMED_S
    measured = float(run.cells["step_s_median"])
    yield low + (measured - first) * (high - low) / (second - first)


@in_session
def ratios_with_experts() -> list[float]:
    """Measured over predicted steps of runs with experts, by the stack as it is."""
    found = []
    for run in golden_runs():
        if _has_unfused_experts(run):
            try:
                job, machine = _with_experts(run), run.machine
            except SimgptError:
                continue
            step_s = predict(job.gpt, job.plan, machine, stack=job.stack).step_s
            found.append(float(run.cells["step_s_median"]) / step_s)
    return found


def _has_unfused_experts(run: GoldenRun) -> bool:
    cells = run.cells
    small = cells["layers"] == LAYERS and cells["gpus"] == DEVICES and bool(cells["experts"])
    adam = cells["optimizer"].startswith("adam") and cells["fsdp"] == "none"
    grouped = cells["moe_grouped_gemm"] == "1" and FUSED not in cells["notes"]
    return small and adam and grouped and cells["platform_gpu"] in HOSTS


def _with_experts(run: GoldenRun) -> Job:
    cells = run.cells
    sizes = {"experts": "experts", "topk": "topk", "expert_ffn": "moe_ffn"}
    own: dict[str, Any] = {name: int(cells[column]) for name, column in sizes.items()}
    gpt = run.gpt.changed(biases=False, **own)
    words = run.words | {"ep": int(cells["ep"])}
    if cells["etp"] not in ("", cells["tp"]):
        words["etp"] = int(cells["etp"])
    return job_of(
        gpt, words, load_stack(STACK), devices=int(DEVICES), batch=int(cells["global_batch"])
    )


@in_session
def kernels_of_latent_attention() -> dict[str, float]:
    """For each run with latent attention the kernels of `LATENT`, forward and backward alike, at
    which it is predicted as it was measured. A grown step is linear in them."""
    found = {}
    for run in golden_runs():
        cells = run.cells
        if not LATENT_CASE.fullmatch(cells["case"]) or cells["platform_gpu"] not in HOSTS:
            continue
        job = job_of(
            run.gpt.changed(**LATENT_SIZES),
            run.words,
            load_stack(STACK),
            devices=int(DEVICES),
            batch=int(cells["global_batch"]),
        )
        own = job.stack.own_kernels
        steps = []
        for kernels in TRIED:
            more = {**own["launches"], **dict.fromkeys(LATENT, kernels)}
            host = {"host": own["host_with_experts"], "launches": more}
            stack = replace(job.stack, own_kernels={**own, **host})
            steps.append(predict(job.gpt, job.plan, run.machine, stack=stack).step_s)
        (first, second), (low, high) = steps, TRIED
        over = float(cells["step_s_median"]) - first
        found[run.id] = low + over * (high - low) / (second - first)
    return found


def _lines() -> Iterator[str]:
    yield "GPU     runs   median   quarter   three quarters"
    for gpu, times in sorted(host_times().items()):
        first, middle, third = (1e6 * each for each in statistics.quantiles(times, n=4))
        yield f"{gpu:5} {len(times):6} {middle:5.0f} us {first:6.0f} us {third:13.0f} us"
    ratios = ratios_with_experts()
    yield (
        f"with experts, measured over predicted: {statistics.median(ratios):.2f} in the median of "
        f"{len(ratios)} runs, {min(ratios):.2f} to {max(ratios):.2f}"
    )
    kernels = kernels_of_latent_attention().values()
    yield (
        f"latent attention put together: {statistics.median(kernels):.1f} kernels in the median of "
        f"{len(kernels)} runs, {min(kernels):.1f} to {max(kernels):.1f}"
    )


@click.command()
def main() -> None:
    """Print hosts' times for an op, and what runs with experts and latent attention say."""
    for line in _lines():
        print(line)


if __name__ == "__main__":
    main()
