"""Machines on which more bytes take less time than fewer: bounds hold there, and so do answers."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from simulator.search.bounds.nonmonotonic_latency import may_fall, without_falls
from simulator.search.problem import SearchProblem
from simulator.stacks import load_stack
from tests.simulator.search.answers import finds_the_best
from tests.simulator.search.drawn import MACHINES
from tests.simulator.search.measured_tables import TINY, curve, table, with_kernels
from topologies.collectives.collective_time import measured_seconds
from topologies.hardware.profile import Profile
from topologies.machine_files import load_machine, with_settings
from workload.expert_loads.histogram import Histogram, routed

USUAL_ORDER: dict[str, Any] = {"order": "tp-dp-pp", "overlap": (), "recompute": "none"}
ONE: dict[str, Any] = USUAL_ORDER | {"y": 1, "z": 1, "pp": 1, "zero": 0}
EXPERTS = TINY.changed(sequence=1024, activation="swiglu", experts=16, topk=4, expert_ffn=1024)


def test_later_micro_batches_add_their_loss_in_less_time_than_the_first_writes_it() -> None:
    """Of 256 rows the first loss has 2,052 bytes, the others 2,056."""
    machine = with_kernels("dgx-a100", 4e-5, loss_mean=curve((2052, 2e-3), (2056, 1e-6)))
    sums = curve((1e3, 1e-6), (3e5, 1e-6), (1e6, 2e-2), ranks=(2,))
    assert machine.profile is not None
    profile = replace(machine.profile, collectives={"all_reduce": sums})
    finds_the_best(SearchProblem(TINY, 2, 32, ONE), replace(machine, profile=profile))


def test_later_micro_batches_add_to_gradients_with_less_energy_than_the_first_writes_them() -> None:
    """A norm's gradients have 396,800 bytes in the first, 397,824 in the others."""
    grads = curve((396800, 3e-4), (397824, 1e-6))
    machine = with_kernels("frontier", 3.8e-5, layernorm_grad=grads)
    problem = SearchProblem(replace(TINY, layers=4), 4, 64, ONE | {"tp": 1})
    finds_the_best(problem, machine, "energy")


def of_own_rows() -> SearchProblem:
    """Megatron's gathers have more bytes than those of the program that bounds come from."""
    counts = (9, 9) + (1,) * 14
    gpt = routed(EXPERTS.changed(hidden=1024, expert_ffn=16384), Histogram((counts, counts)))
    fixed = ONE | {"tp": 2, "mbs": 1, "dispatcher": "usual", "sp": True}
    return SearchProblem(gpt, 8, 16, fixed, stack=load_stack("megatron-core"))


def test_gathers_of_own_rows_may_be_measured_as_faster_than_those_of_tokens() -> None:
    tokens = 1024 * 1024 * 2
    points = (1e3, 1e-5), (0.9 * tokens, 1e-2), (1.1 * tokens, 1e-2), (1.5 * tokens, 1e-4)
    gathers = curve(*points, (1e8, 5e-4), ranks=(2, 4, 8))
    profile = Profile(collectives={"all_gather": gathers})
    finds_the_best(of_own_rows(), replace(load_machine("dgx-h100"), profile=profile))


def test_gathers_of_own_rows_may_be_faster_where_a_library_stalls_at_those_of_tokens() -> None:
    """Across nodes, in chunks of 1 MiB for tokens."""
    at = "software.all_gather.stall."
    stall = {f"{at}chunk_from": "900 KiB", f"{at}chunk_below": "1200 KiB", f"{at}hop": "10 ms"}
    problem, order = of_own_rows(), {"order": "dp-tp-pp"}
    can = {key: value for key, value in problem.stack.can.items() if key != "order"}
    stack = replace(problem.stack, can=can)
    across = replace(problem, fixed={**problem.fixed, **order}, stack=stack)
    finds_the_best(across, with_settings(load_machine("perlmutter"), stall))


POINTS = st.lists(
    st.tuples(st.sampled_from([10.0, 80.0, 1e3, 5e4, 1e6]), st.floats(1e-6, 1.0)),
    min_size=1,
    max_size=6,
    unique_by=lambda point: point[0],
)


# Between two points a time is interpolated by logarithms. Of times a millionfold apart these are up
# to 14, each of three rounded to half an ulp, and so is the exponential: 42 ulp. 4,000 drawn ones
# were 17 off at most.
ROUNDED = 1 + 64 * sys.float_info.epsilon


@example(points=[(10.0, 0.55), (80.0, 0.0078125)], sizes=(80.0, 80.0))
@given(points=POINTS, sizes=st.tuples(st.floats(1.0, 1e7), st.floats(1.0, 1e7)))
def test_without_falls_times_only_grow_and_are_never_above_what_was_measured(
    points: list[tuple[float, float]], sizes: tuple[float, float]
) -> None:
    machine = MACHINES["perlmutter"]
    own = curve(*points, ranks=(1, 2))
    attention = [(1.0, size, 1.0, 1.0, 1.0, seconds) for size, seconds in points]
    columns = ("ranks", "rows", "heads", "width", "sequence", "seconds")
    batched = [(1.0, 0.0, size, seconds) for size, seconds in points]
    kernels = {"gelu@bf16": curve(*points), "attention@bf16": table(columns, *attention)}
    kernels["batched_matmul@bf16"] = table(("ranks", "form", "flops", "seconds"), *batched)
    profile = Profile(kernels=kernels, collectives={"all_gather": own})
    grown = without_falls(replace(machine, profile=profile)).profile
    assert grown is not None
    less, more = sorted(sizes)
    times = [
        [
            measured_seconds(each.collectives["all_gather"], "all_gather", size, 2)
            for size in (less, more)
        ]
        for each in (grown, profile)
    ]
    assert times[0][0] <= times[0][1] * ROUNDED
    assert all(low <= high * ROUNDED for low, high in zip(*times, strict=True))
    if points == sorted(points) and [t for _, t in points] == sorted(t for _, t in points):
        assert grown == profile
    for each in grown.kernels.values():
        seconds = [row[-1] for row in each.rows]
        assert all(low <= high for low, (_, high) in zip(seconds, points, strict=True))
        by_size = [low for _, low in sorted(zip(points, seconds, strict=True))]
        assert by_size == sorted(by_size)
        assert min(seconds) == min(high for _, high in points)


def test_machines_have_times_that_grow_but_where_a_library_stalls_or_a_tuner_picks() -> None:
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv"):
        assert not may_fall(load_machine("frontier"), kind)
    stalls = load_machine("frontier:rccl-default")
    assert may_fall(stalls, "send_recv", "reduce_scatter").startswith("its reduce-scatters of some")
    assert may_fall(stalls, "all_reduce")
    assert may_fall(load_machine("kestrel"), "all_reduce").startswith("its all-reduces of some")
    assert not may_fall(load_machine("kestrel"), "all_gather", "reduce_scatter", "all_to_all")
