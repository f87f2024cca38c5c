"""`simgpt bench-network --fit`: a table of nccl-tests beside the prediction, and a machine file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simgpt.commands.network_fit import fitted_to
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from topologies.collectives.fit import Sample, predicted_s
from topologies.machine_files import load_machine

P4DE = "2x8xA100-80,4xEFA-100"
# AWS's published run of all_reduce_perf on 2 p4de.24xlarge, as nccl-tests prints it.
TABLE = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 2147483648 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Pid   1001 on      node0 device  0 [0x10] NVIDIA A100-SXM4-80GB
#  Rank 15 Pid   1001 on      node1 device  7 [0xa0] NVIDIA A100-SXM4-80GB
     1048576        262144     float     sum      -1    309.4    3.39    6.35      0
    16777216       4194304     float     sum      -1   1191.8   14.08   26.39      0
   134217728      33554432     float     sum      -1   3912.9   34.30   64.31      0
  1073741824     268435456     float     sum      -1    26217   40.96   76.79      0
  2147483648     536870912     float     sum      -1    51406   41.78   78.33      0
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "all_reduce.txt"
    path.write_text(TABLE)
    return str(path)


def test_a_table_becomes_a_machine_file_that_predicts_it(table: str, tmp_path: Path) -> None:
    ours = tmp_path / "ours.toml"
    said = simgpt("bench-network", "-m", P4DE, "--fit", table, "-o", str(ours), "--json")
    assert said.status == 0
    assert "wrote" in said.err
    record = json.loads(said.out)
    assert record["mean_error"] > 0.3
    assert record["fitted_mean_error"] < 0.05
    assert record["held_out_mean_error"] < 0.15
    assert "software.tree.launch" in record["not_determined"]
    machine = load_machine(str(ours))
    fitted = [fact for fact in machine.entries if "all_reduce.txt" in fact.source]
    assert {fact.key for fact in fitted} == set(record["software"])
    assert {fact.confidence for fact in fitted} == {"medium"}
    again = simgpt("bench-network", "-m", str(ours), "--fit", table, "--json")
    found = {row["bytes"]: row for row in json.loads(again.out)["rows"]}
    for row in record["rows"]:
        assert found[row["bytes"]]["predicted_s"] == pytest.approx(row["fitted_s"], rel=1e-3)
        assert row["fitted_s"] == pytest.approx(row["measured_s"], rel=0.05)


def test_a_fit_that_no_held_out_size_tests_is_of_low_confidence(tmp_path: Path) -> None:
    path, ours = tmp_path / "three.txt", tmp_path / "ours.toml"
    path.write_text("".join(TABLE.splitlines(keepends=True)[:6]))
    words = ("-m", P4DE, "--fit", str(path), "-o", str(ours), "--json")
    assert json.loads(simgpt("bench-network", *words).out)["held_out_mean_error"] is None
    fitted = [fact for fact in load_machine(str(ours)).entries if path.name in fact.source]
    assert {fact.confidence for fact in fitted} == {"low"}


@pytest.mark.parametrize(("slower", "error"), [(1, 0), (4, 0.75)])
def test_sizes_held_out_are_not_seen_by_the_fit_that_they_test(
    tmp_path: Path, slower: int, error: float
) -> None:
    """Every second size takes `slower` times as long as the machine already predicts."""
    machine, path = load_machine(P4DE), tmp_path / "rows.txt"
    samples = [Sample("all_gather", 16, 2, 2.0**power, 0.0) for power in range(31, 23, -1)]
    rows = [
        f"{each.size_bytes:.0f} {each.size_bytes / 4:.0f} float none -1 "
        f"{1e6 * predicted_s(machine, each) * (slower if held else 1):.6f} 0.00 0.00 0\n"
        for each, held in zip(samples, [False, True] * 4, strict=True)
    ]
    path.write_text("".join(reversed(rows)))
    found = fitted_to(machine, path, kind="all_gather", ranks=16)
    assert found.held_out == pytest.approx(error, abs=1e-3)


def test_text_has_every_size_the_error_that_is_left_and_what_is_not_known(table: str) -> None:
    said = simgpt("bench-network", "-m", P4DE, "--fit", table)
    rows = [line for line in said.out.splitlines() if line.startswith("all_reduce")]
    assert len(rows) == 5
    assert all("%" in line for line in rows)
    assert_names(said.out, "software.tree.efficiency_across")


def test_a_file_in_another_folder_stays_the_base_and_settings_stay_set(
    table: str, tmp_path: Path
) -> None:
    base, folder = tmp_path / "base.toml", tmp_path / "out"
    base.write_text(f'base = "{P4DE}"\n')
    folder.mkdir()
    words = ("-m", str(base), "--fit", table, "--set", "device.matmul.sustained=0.5")
    ours = folder / "ours.toml"
    assert simgpt("bench-network", *words, "-o", str(ours)).status == 0
    assert load_machine(str(ours)).device.matmul.sustained == 0.5


def test_rows_alone_take_what_the_options_say(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("1048576 262144 float none -1 309.4 0.00 0.00 0 307.3 0.00 0.00 0\n")
    bench = ("bench-network", "-m", P4DE, "--fit", str(path))
    assert "--collective all_gather" in simgpt(*bench).sentence
    assert "--devices 16" in simgpt(*bench, "--collective", "all_gather").sentence
    given = ("--collective", "all_gather", "--devices", "16", "--json")
    (row,) = json.loads(simgpt(*bench, *given).out)["rows"]
    assert (row["collective"], row["devices"], row["nodes"]) == ("all_gather", 16, 2)


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (("--sizes", "1MiB:1GiB"), 2, "--sizes --fit"),
        (("--algorithm", "ring"), 2, "--algorithm --fit"),
        (("--placement", "contiguous"), 2, "--placement --fit"),
        (("--devices", "16:64"), 2, "--devices --fit"),
        (("--devices", "64"), 2, "all_reduce 64 --devices"),
        (("--collective", "all_gather"), 2, "all_gather 16 --collective"),
    ],
)
def test_an_option_that_the_table_answers_is_refused(
    table: str, words: tuple[str, ...], status: int, named: str
) -> None:
    said = simgpt("bench-network", "-m", P4DE, "--fit", table, *words)
    assert said.status == status
    assert_names(said.sentence, *named.split())
