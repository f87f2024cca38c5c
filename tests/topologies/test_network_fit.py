"""A library's curves fitted to measured collectives: what a half of them says of the other half."""

from __future__ import annotations

import dataclasses

import pytest

from tests.messages import names
from topologies.collectives.fit import (
    Sample,
    every_other,
    fit_network,
    fitted_samples,
    mean_error,
    predicted_s,
)
from topologies.errors import MachineError
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from validation.network_tables import Measured, measured, read_tables
from validation.network_validation import comparable, devices_per_node

# AWS's published run of all_reduce_perf on 2 p4de.24xlarge: 8 A100 and 4 EFA of 100 Gbit/s each.
P4DE = "2x8xA100-80,4xEFA-100"
REDUCED = ((2**20, 309.4), (2**24, 1191.8), (2**27, 3912.9), (2**30, 26217), (2**31, 51406))
EFA = [Sample("all_reduce", 16, 2, float(size), us / 1e6) for size, us in REDUCED]


def samples_of(machine: Machine, sizes: list[float], nodes: int = 4) -> list[Sample]:
    empty = [Sample("all_gather", 8 * nodes, nodes, size, 1.0) for size in sizes]
    return [dataclasses.replace(each, seconds=predicted_s(machine, each)) for each in empty]


@pytest.mark.parametrize("half", [0, 1])
def test_half_of_a_table_of_efa_predicts_the_other_half_within_a_quarter(half: int) -> None:
    machine, halves = load_machine(P4DE), every_other(EFA)
    fit = fit_network(machine, halves[half])
    errors = [abs(predicted_s(fit.machine, s) / s.seconds - 1) for s in halves[1 - half]]
    assert max(errors) < 0.25
    assert max(abs(predicted_s(machine, s) / s.seconds - 1) for s in halves[1 - half]) > 0.38


def test_a_whole_table_of_efa_is_met_at_every_size() -> None:
    fit = fit_network(load_machine(P4DE), EFA)
    assert max(abs(predicted_s(fit.machine, s) / s.seconds - 1) for s in EFA) < 0.05


# Between nodes, and of messages within one.
QUICK = ["alps_nccl_allreduce_8gpu_2node", "dgx_a100_send_recv_intranode"]
SLOW = [
    "dgx_a100_nccl_allreduce_8gpu",
    "alps_nccl_allreduce_2gpu_2node",
    "kestrel_nccl_allreduce_64gpu_16node",
    "kestrel_nccl_allgather_64gpu_16node",
    "dgx_h100_nccl_allreduce_8gpu",
    "dgx_a100_nccl_allreduce_lut_8gpu",
    "lumi_mpich_bw_intranode_gcd0_gcd1",
    "gb200_nccl_alltoall",
]
TABLES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize("name", TABLES)
def test_half_of_a_published_table_predicts_the_other_half(name: str) -> None:
    table = measured(name, read_tables()[name], devices_per_node())
    assert isinstance(table, Measured)
    every = [
        Sample(table.kind, row.devices, row.nodes, row.payload_bytes, row.seconds)
        for row in comparable(table)
    ]
    seen, held = every_other(every)
    machine = load_machine(table.variant)
    assert mean_error(fit_network(machine, seen).machine, held) < 0.15


def test_constants_that_made_the_samples_are_found_again() -> None:
    machine = load_machine("4x8xH100,8xNDR")
    other = {
        "software.all_gather.efficiency_across": "0.4",
        "software.all_gather.hop_large": "150 us",
    }
    sizes = [2.0**power for power in range(16, 33)]
    samples = samples_of(with_settings(machine, other), sizes)
    fit = fit_network(machine, samples)
    found = {constant.field: constant.after for constant in fit.determined}
    assert found["efficiency_across"] == pytest.approx(0.4, rel=0.02)
    assert found["hop_large_s"] == pytest.approx(150e-6, rel=0.15)
    assert mean_error(fit.machine, samples) < 0.01
    assert mean_error(machine, samples) > 0.3


def test_what_samples_do_not_determine_stays_as_the_machine_has_it() -> None:
    """Two gibibytes say how fast links are, and nothing of latencies."""
    machine = load_machine("4x8xH100,8xNDR")
    other = with_settings(machine, {"software.all_gather.efficiency_across": "0.4"})
    fit = fit_network(machine, samples_of(other, [2.0**31, 2.0**32]))
    assert [constant.field for constant in fit.determined] == ["efficiency_across"]
    assert {"hop_small_s", "launch_s"} <= {constant.field for constant in fit.kept}
    own, before = fit.machine.software.all_gather, machine.software.all_gather
    assert own is not None
    assert before is not None
    assert (own.launch_s, own.hop_small_s) == (before.launch_s, before.hop_small_s)


def test_a_fit_changes_no_other_curve_and_lets_no_latency_fall() -> None:
    machine = load_machine(P4DE)
    fit = fit_network(machine, EFA)
    assert fit.machine.software.all_gather == machine.software.all_gather
    assert fit.machine.software.all_reduce == machine.software.all_reduce
    tree = fit.machine.software.tree
    assert tree is not None
    assert tree.hop_large_s is not None
    assert tree.hop_large_s > tree.hop_small_s


def test_a_collective_without_a_curve_gets_one_of_its_own() -> None:
    machine = load_machine("perlmutter")
    assert machine.software.broadcast is None
    samples = [Sample("broadcast", 8, 2, 2.0**power, 2.0**power / 1e10) for power in (26, 28, 30)]
    fit = fit_network(machine, samples)
    assert fit.new == ("broadcast",)
    assert fit.machine.software.all_gather == machine.software.all_gather
    assert mean_error(fit.machine, samples) < 0.05


def test_small_messages_are_left_out_where_there_are_large_ones() -> None:
    small, large = (Sample("all_reduce", 16, 2, size, 1e-4) for size in (1024.0, 2.0**20))
    assert fitted_samples([small, large]) == [large]
    assert fitted_samples([small]) == [small]


def test_the_largest_size_of_each_group_is_fitted_in_whatever_order_it_is_given() -> None:
    """What is held out lies below a size that is fitted, so nothing of it is extrapolated."""
    (a, b), sizes = (8, 16), (2.0, 8.0, 1.0, 4.0)
    seen, held = every_other([Sample("all_reduce", n, 2, s, 1e-4) for s in sizes for n in (a, b)])
    assert [(each.ranks, each.size_bytes) for each in seen] == [(a, 8), (a, 2), (b, 8), (b, 2)]
    assert [(each.ranks, each.size_bytes) for each in held] == [(a, 4), (a, 1), (b, 4), (b, 1)]


def test_a_group_that_the_machine_has_no_nodes_for_is_refused() -> None:
    machine = load_machine(P4DE)
    with pytest.raises(MachineError, check=names("64", "2")):
        fit_network(machine, [Sample("all_reduce", 64, 2, 2.0**20, 1e-3)])
