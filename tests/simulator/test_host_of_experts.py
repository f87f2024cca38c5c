"""The host that issues the kernels of layers with experts: graphs, and waits for counts of rows."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from simulator.costs.analytic import AnalyticCosts
from simulator.costs.graph_scopes import issued
from simulator.costs.kernel_launch import launch_bound
from simulator.costs.kernels import Kernels
from simulator.predict import predict
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from tools.fit_host_time import host_times
from topologies.files.reading import shipped_text
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.kinds import OWN_PLACES
from workload.op import (
    AROUND_DEPTH,
    BACKWARD,
    COUNTING,
    EXPERT_DISPATCH,
    FEED_FORWARD,
    FORWARD,
    MIXER,
    ROUTING,
    Block,
    Op,
    layer_part,
)

IN_LAYER = Block(0, layer_part(0), FORWARD)
KERNEL = Op("k", "add", (), ("o",), IN_LAYER, label="norm1")
EXCHANGE = replace(
    KERNEL,
    kind="all_to_all",
    reads=("rows", "sent", "counts"),
    purpose=EXPERT_DISPATCH,
    axes=("dp",),
    label="dispatch.exchange",
)
ROUTED, ALL = ("moe_router", "moe_preprocess"), ("attn", "moe_router", "moe_preprocess")


def test_behind_a_wait_for_counts_the_host_is_ahead_of_nothing() -> None:
    """Kernels of 50, an exchange of 10, kernels of 5 and 40, each issued in 20. Up to the exchange
    the device needs 50 for 20 of the host. Behind it the ops last 20 + 10 + 5 + 40 = 75 if the
    first is waited for, 40 + 5 + 40 = 85 if the second is, 60 + 40 = 100 if the third is: 45 are
    missing."""
    ops = [KERNEL, EXCHANGE, KERNEL, KERNEL]
    assert launch_bound(ops, [50, 10, 5, 40], [20] * 4) == [50, 10, 28, 62]
    # Where the counts are known, the block as a whole needs 105 for 80 of the host.
    known = replace(EXCHANGE, block=IN_LAYER._replace(phase=BACKWARD))
    backward = [replace(op, block=known.block) for op in (KERNEL, KERNEL, KERNEL)]
    ops = [backward[0], known, *backward[1:]]
    assert launch_bound(ops, [50, 10, 5, 40], [20] * 4) == [50, 10, 5, 40]
    even = replace(EXCHANGE, reads=("rows",))
    assert launch_bound([KERNEL, even, KERNEL], [50, 10, 5], [20] * 3) == [50, 10, 5]


def test_where_tokens_are_gathered_the_host_waits_for_own_rows_unless_places_are_fixed() -> None:
    """Behind a kernel of 50, whose rest it is not ahead of, the search for rows takes 20 + 10 + 5
    or 40 + 5, in place of 15: 30 are missing. With a capacity all are known before."""
    found = {}
    for places in (0, 4):
        search = replace(KERNEL, kind=OWN_PLACES, attributes={"places": places})
        found[places] = launch_bound([KERNEL, search, KERNEL], [50, 10, 5], [20] * 3)
    assert found == {0: [50, 25, 20], 4: [50, 10, 5]}


@pytest.mark.parametrize(
    ("label", "module", "none", "routed", "attended"),
    [
        ("norm1", MIXER, 1, 1, 1),  # the call that replays the graph of attention and router
        ("attention", MIXER, 1, 1, 0),
        ("router.matmul", ROUTING, 1, 1, 0),  # that of the router alone
        ("route", ROUTING, 1, 0, 0),
        ("dispatch.places", COUNTING, 1, 0, 0),
        ("experts.up.matmul", FEED_FORWARD, 1, 1, 1),
        ("head.matmul", AROUND_DEPTH, 1, 1, 1),
    ],
)
def test_a_graph_is_issued_by_one_call(
    label: str, module: str, none: int, routed: int, attended: int
) -> None:
    op = replace(KERNEL, label=label, module=module)
    found = [issued(op, graphs) for graphs in ((), ROUTED, ALL, ("full_iteration",))]
    assert found == [none, routed, attended, 0]
    outside = replace(op, block=Block(0))
    assert issued(outside, ALL) == 1


def test_the_more_is_in_graphs_the_shorter_is_a_step_that_the_host_bounds() -> None:
    gpt, machine = find_model("qwen3-30b-a3b"), load_machine("dgx-h100")
    steps = []
    for name in ("nemo", "nemo+graphs=router", "nemo+graphs=attn", "nemo+graphs=full"):
        job = job_of(gpt, "dp=8,ep=8,mbs=1", load_stack(name), devices=8, batch=16)
        steps.append(predict(job.gpt, job.plan, machine, stack=job.stack).step_s)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 1.05 * steps[-1]


def test_models_without_experts_are_bound_by_no_host() -> None:
    machine, stack = load_machine("dgx-h100"), load_stack("megatron-core")
    found = {}
    for name in ("qwen3-30b-a3b", "llama-3.1-8b"):
        job = job_of(find_model(name), "dp=8,mbs=1", stack, devices=8, batch=16)
        found[name] = stack.kernels(job.gpt, job.plan, machine).host_s
    assert found["qwen3-30b-a3b"] > 0 == found["llama-3.1-8b"]


@pytest.mark.parametrize("narrow", ["fp8", "mxfp8", "nvfp4"])
def test_one_call_issues_kernels_for_each_expert(narrow: str) -> None:
    """A call takes 100 us of the host, and 9 us more for each of 8 matmuls, in 8 bits or 4 30 us;
    casts of 8 experts by 4 kernels each take 32 times 9 us more."""
    kernels = Kernels(host_s=100e-6, host_of_expert_s=9e-6, narrow_host_of_expert_s=30e-6)
    grouped = replace(KERNEL, kind="grouped_matmul", label="experts.up", attributes={"count": 8})
    casts = replace(KERNEL, kind="cast", label="experts.up.cast", attributes={"kernels": 32})
    costs = AnalyticCosts(load_machine("dgx-h100"), 1, kernels)
    found = [costs.host_s(op) for op in (KERNEL, grouped, replace(grouped, dtype=narrow), casts)]
    assert found == pytest.approx([100e-6, 172e-6, 340e-6, 388e-6])
    captured = AnalyticCosts(
        load_machine("dgx-h100"), 1, replace(kernels, graphs=("full_iteration",))
    )
    assert captured.host_s(grouped) == captured.host_s(casts) == 0


def test_kernels_of_one_call_begin_one_by_one_on_the_device() -> None:
    machine = load_machine("dgx-h100")
    costs, cast = AnalyticCosts(machine), replace(KERNEL, kind="cast", nbytes=10**9)
    more = costs.seconds(replace(cast, attributes={"kernels": 32})) - costs.seconds(cast)
    assert more == pytest.approx(31 * machine.device.launch_s)


def test_the_time_for_an_expert_is_the_least_of_the_table_of_grouped_matmuls() -> None:
    lines = shipped_text("validation", "data/b200_matmuls.csv").splitlines()
    rows = [line.split(",") for line in lines if line.startswith("grouped_matmul")]
    least_s = min(float(row[-1]) / int(row[1]) for row in rows)
    own = load_stack("megatron-core").own_kernels
    assert own["host_of_expert"]["b200"] == f"{1e6 * least_s:.1f} us"
    slower = 164 / 113  # of Grace's hosts, by `host_with_experts`
    assert own["host_of_expert"]["gb200"] == f"{1e6 * least_s * slower:.1f} us"


@pytest.mark.slow
def test_the_stacks_time_of_an_op_is_the_median_of_runs_without_experts() -> None:
    given = load_stack("megatron-core").own_kernels["host_with_experts"]
    for gpu, times in host_times().items():
        assert given[gpu.lower()] == f"{1e6 * statistics.median(times):.0f} us"
    assert given["b200"] == given["b300"] == given["mi355x"] == given["h100"]
    assert given["gb300"] == given["gh200"] == given["gb200"]
