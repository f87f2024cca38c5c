"""Predicted collectives beside measured ones: the bar, the split, and what is refused."""

from __future__ import annotations

import errno
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from topologies.collectives.benchmark import bench
from topologies.hardware.software import Kind
from topologies.machine_files import load_machine
from validation.network_tables import (
    Measured,
    MeasuredRow,
    Skipped,
    TableError,
    fitted_tables,
    measured,
    read_tables,
)
from validation.network_validation import (
    Comparison,
    comparable,
    devices_per_node,
    fit_rows,
    is_sparse,
    validate_network,
)

ROOT = Path(__file__).resolve().parent.parent.parent
BAR = 0.10
# Tables that miss the bar, with the mean absolute error that they must not exceed, and the reason.
MISSED = {
    "alps_nccl_allreduce_8gpu_2node_without_cxi": (0.15, "TCP: 1 MiB takes longer than 2 MiB"),
    "dgx_a100_nccl_allreduce_2node": (0.14, "one figure, of no stated size"),
    "frontier_all_gather_all_gather_hybrid": (0.17, "early run, nothing fitted; 64 GCDs are slow"),
    "frontier_all_gather_all_gather_mpi": (0.28, "early run, nothing fitted; stalls not modelled"),
    "frontier_all_gather_all_gather_nccl": (0.24, "early run; stalls of 25 ms per hop, noisy"),
    "frontier_all_gather_all_gather_2_mpi": (0.22, "nothing fitted; stalls from 128 GCDs on"),
    "frontier_all_gather_all_gather_3_mpi": (0.12, "16 and 32 GCDs switch where it is not best"),
    "frontier_reduce_scatter_reduce_scatter_hybrid": (0.14, "early run, nothing fitted"),
    "perlmutter_all_gather_pm_all_gather_mpi": (0.15, "16 and 32 GPUs switch where it is not best"),
    "perlmutter_all_gather_pm_all_gather_2_mpi": (0.17, "16 and 32 GPUs switch as above"),
    "rccl_allgather_32gcd_issue1490": (0.25, "two rows, nothing fitted; other software"),
}


@cache
def compared() -> dict[str, Comparison]:
    """All tables, predicted once for the tests of a process."""
    return {each.name: each for each in validate_network()}


@pytest.mark.parametrize("name", read_tables())
def test_tables_are_met_within_ten_percent_but_for_those_that_say_why(name: str) -> None:
    mape = compared()[name].mape
    if mape is None:
        assert compared()[name].reason
        return
    bound = MISSED[name][0] if name in MISSED else BAR
    assert mape <= bound
    assert name not in MISSED or mape > BAR, "it meets the bar now"


def test_every_other_table_says_why_it_is_skipped() -> None:
    skipped = {name: each.reason for name, each in compared().items() if not each.points}
    assert set(MISSED) <= set(compared()) - set(skipped)
    assert all(skipped.values())
    ops = ("gemm", "run_time_vs_groups", "collective_time_of_runs")  # which are no collectives
    assert sum(any(op in reason for op in ops) for reason in skipped.values()) == 9
    assert len(skipped) == 12


def test_the_fit_saw_at_most_half_of_the_device_counts_or_half_of_the_sizes() -> None:
    every, per_node = read_tables(), devices_per_node()
    for name in sorted(fitted_tables()):
        table = measured(name, every[name], per_node)
        assert isinstance(table, Measured)
        counts, seen = {row.devices for row in table.rows}, {r.devices for r in fit_rows(table)}
        if len(counts) > 1:
            assert len(seen) <= len(counts) / 2
        else:
            assert len(fit_rows(table)) <= (len(table.rows) + 1) / 2


def test_the_fitted_tables_are_those_of_the_fit_script() -> None:
    jobs = json.loads((ROOT / "tools" / "fit_jobs.json").read_text(encoding="utf-8"))
    assert fitted_tables() == {table for job in jobs.values() for table in job["tables"]}


def test_every_table_of_more_than_eight_rows_is_within_a_tenth_or_its_error_explained() -> None:
    large = {name: each for name, each in compared().items() if len(each.points) > 8}
    badly = {name for name, each in large.items() if each.mape is not None and each.mape > 0.1}
    assert badly == {name for name, each in compared().items() if each.explanation}


def test_a_curve_fitted_to_few_rows_or_to_one_count_of_devices_is_of_low_confidence() -> None:
    jobs = json.loads((ROOT / "tools" / "fit_jobs.json").read_text(encoding="utf-8"))
    every, per_node, sparse = read_tables(), devices_per_node(), 0
    for job in jobs.values():
        found = [measured(name, every[name], per_node) for name in job["tables"]]
        ours = [table for table in found if isinstance(table, Measured)]
        if is_sparse(sum(map(len, job["free"].values())), ours, job.get("from", 0)):
            sparse += 1
            variant = job["into"].partition(".software")[0].removeprefix("variants.")
            name = ours[0].variant.partition(":")[0]
            own = load_machine(f"{name}:{variant}" if variant != "software" else name)
            facts = {fact.key: fact for fact in own.entries}
            for slot, keys in job["free"].items():
                for key in keys:
                    assert facts[f"software.{slot}.{key}"].confidence == "low", (slot, key, name)
    assert sparse > 10


def test_two_rows_a_parameter_and_two_counts_make_a_fit() -> None:
    """Of four counts of devices the fit sees two, of four sizes each; of sixteen sizes of one
    count eight. A message has two devices always."""

    def table(kind: Kind, counts: tuple[int, ...], sizes: int) -> Measured:
        rows = [
            MeasuredRow(devices, 2, 2.0**power, 2.0**power, 1e-3)
            for devices in counts
            for power in range(20, 20 + sizes)
        ]
        return Measured("t", "perlmutter", kind, tuple(rows))

    several = table("all_gather", (8, 16, 32, 64), 4)
    assert [is_sparse(parameters, [several]) for parameters in (4, 5)] == [False, True]
    assert is_sparse(1, [table("all_gather", (8,), 16)])
    message = table("send_recv", (2,), 16)
    assert [is_sparse(parameters, [message]) for parameters in (4, 5)] == [False, True]


def test_start_up_artefacts_are_left_out_and_counted() -> None:
    each = compared()["frontier_all_gather_all_gather_3_nccl"]
    assert (len(each.points), each.artefacts) == (64, 2)
    assert each.fitted_devices == (8, 64, 256)


def test_rows_below_a_mebibyte_are_not_compared() -> None:
    name = "dgx_h100_send_recv_intranode"
    table = measured(name, read_tables()[name], devices_per_node())
    assert isinstance(table, Measured)
    assert [row.size_bytes / 2**20 for row in comparable(table)] == [1, 2, 4, 8, 16, 32, 64]


def test_a_size_per_rank_counts_for_all_ranks() -> None:
    name = "lumi_mpich_all_gather_16gcd_2node"
    table = measured(name, read_tables()[name], devices_per_node())
    assert isinstance(table, Measured)
    assert {row.payload_bytes / row.size_bytes for row in table.rows} == {16.0}


def test_a_table_of_an_unknown_machine_is_skipped_with_a_reason() -> None:
    table = {"machine": "elsewhere", "op": "all_gather", "library": "NCCL"}
    found = measured("new", table, {})
    assert isinstance(found, Skipped)
    assert_names(found.reason, "NCCL", "elsewhere")


def _file(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "tables.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def _larger() -> dict[str, Any]:
    shipped = read_tables()["frontier_all_gather_all_gather_3_nccl"]
    return {**shipped, "rows": [[512, 2**30, 0.0178]]}


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_file_of_larger_groups_is_compared_with_all_of_it_held_out(
    tmp_path: Path, wrapped: bool
) -> None:
    tables = {"larger": _larger()}
    path = _file(tmp_path, {"tables": tables, "other": 1} if wrapped else tables)
    (each,) = validate_network(path)
    assert isinstance(each, Comparison)
    assert (each.variant, each.fitted_devices) == ("frontier:rccl-rendezvous", ())
    assert each.heldout_mape == each.mape


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", ("JSON",)),
        ("[]", ("tables.json",)),
        ("{}", ("tables.json",)),
        (
            {"t": {**_larger(), "columns": ["devices", "bytes"]}},
            ("t", "devices", "bytes", "seconds", "bytes_per_second"),
        ),
        ({"t": {**_larger(), "rows": [[512, 2**30, "tp"]]}}, ("t", "seconds", "tp")),
        ({"t": {**_larger(), "rows": [[512, 2**30]]}}, ("t", "seconds", "None")),
        ({"t": {**_larger(), "rows": 3}}, ("t", "columns", "rows")),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(
    tmp_path: Path, content: Any, named: tuple[str, ...]
) -> None:
    with pytest.raises(TableError, check=names(*named)) as error:
        validate_network(_file(tmp_path, content))
    assert error.value.exit_code == 2


def test_a_missing_file_and_an_unknown_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, check=names("none.json", os.strerror(errno.ENOENT))):
        validate_network(tmp_path / "none.json")
    with pytest.raises(TableError, check=names("nope")):
        validate_network(name="nope")


def test_the_command_prints_the_record_of_its_tables() -> None:
    words = ("--json", "--table", "frontier_all_gather_all_gather_3_nccl")
    record = json.loads(simgpt("validate", "network", *words).out)
    (table,) = record["tables"]
    assert record["mape"] == table["mape"] < BAR
    keys = {"name", "rows", "mape", "median_error", "worst", "status", "reason", "heldout_mape"}
    assert keys <= set(table)
    assert (table["status"], table["rows"]) == ("compared", 64)


def test_bench_network_prints_sizes_by_devices_with_both_bandwidths() -> None:
    words = ("-m", "frontier", "--sizes", "1MiB:4MiB", "--devices", "16:32", "--json")
    rows = json.loads(simgpt("bench-network", *words).out)["rows"]
    assert [(row["devices"], row["bytes"] / 2**20) for row in rows] == [
        (16, 1), (16, 2), (16, 4), (32, 1), (32, 2), (32, 4),
    ]  # fmt: skip
    for row in rows:
        assert row["algbw_bytes_per_s"] == pytest.approx(row["bytes"] / row["seconds"])
        share = (row["devices"] - 1) / row["devices"]
        assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * share)


def test_bench_network_takes_an_algorithm_instead_of_the_librarys() -> None:
    machine = load_machine("frontier")
    (line,) = bench(machine, "all_reduce", [2.0**26], [2048], "hierarchical")
    (own,) = bench(machine, "all_reduce", [2.0**26], [2048])
    assert (line.algorithm, own.algorithm) == ("hierarchical", "tree")
    assert line.seconds < own.seconds
