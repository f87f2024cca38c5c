"""Tables of nccl-tests and rccl-tests as people have them: whole, cut, in logs, without headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.messages import names
from topologies.collectives.nccl_tests import (
    NcclTable,
    NcclTestsError,
    Row,
    read_nccl_tests,
    with_nodes,
)
from topologies.hardware.software import Kind

HEAD = "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 2(factor) warmup iters: 5\n"
RANKS = "".join(
    f"#  Rank {rank:2d} Group  0 Pid   100{rank} on      node{rank // 8} device  {rank % 8} [0x10] "
    "NVIDIA A100-SXM4-80GB\n"
    for rank in range(16)
)
COLUMNS = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
REDUCED = """\
     1048576        262144     float     sum      -1    309.4    3.39    6.35      0    307.3    3.41    6.40      0
  1073741824     268435456     float     sum      -1    26217   40.96   76.79      0    26194   40.99   76.86      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 41.57
"""  # noqa: E501
ROWS = (Row(2.0**20, 309.4e-6), Row(2.0**30, 26217e-6))


def read(tmp_path: Path, text: str, name: str = "log.txt", **given: object) -> list[NcclTable]:
    path = tmp_path / name
    path.write_text(text)
    return read_nccl_tests(path, **given)  # type: ignore[arg-type]


def test_a_whole_table_says_its_collective_ranks_nodes_and_times(tmp_path: Path) -> None:
    assert read(tmp_path, HEAD + RANKS + COLUMNS + REDUCED) == [
        NcclTable("all_reduce", 16, 2, ROWS)
    ]


def test_ranks_are_one_more_than_the_last_where_lines_between_are_cut(tmp_path: Path) -> None:
    few = "".join(line for line in RANKS.splitlines(True) if "Rank  0" in line or "Rank 15" in line)
    assert read(tmp_path, HEAD + few + COLUMNS + REDUCED)[0].ranks == 16


def test_rows_alone_say_the_ranks_by_their_bandwidths(tmp_path: Path) -> None:
    """2 * 15 / 16 = 1.875 is what 76.79 is of 40.96, and no other number of ranks."""
    (table,) = read(tmp_path, REDUCED)
    assert (table.kind, table.ranks, table.nodes, table.rows) == ("all_reduce", 16, 0, ROWS)
    assert with_nodes(table, 8).nodes == 2
    assert with_nodes(table, 4).nodes == 4
    assert with_nodes(table, 6).nodes == 3  # the last one with four of them


def test_a_single_process_says_its_ranks_by_threads_and_devices(tmp_path: Path) -> None:
    head = HEAD.replace("nGpus 1", "nGpus 8")
    row = "1024 256 float sum -1 30.0 0.03 0.06 0\n"
    assert read(tmp_path, f"all_reduce_perf\n{head}{row}")[0].ranks == 8


@pytest.mark.parametrize(
    "row",
    [
        "1048576 262144 float sum -1 309.4 3.39 6.35 0 307.3 3.41 6.40 0",
        "1048576 262144 float sum -1 309.4 3.39 6.35 N/A 307.3 3.41 6.40 N/A",
        "1048576 262144 float sum -1 309.4 3.39 6.35 307.3 3.41 6.40",
        "1048576 262144 float sum 309.4 3.39 6.35 2e-07 307.3 3.41 6.40 2e-07",
        "1048576 524288 bfloat16 sum -1 309.4 3.39 6.35 0",
        "1048576 524288 half sum 309.4 3.39 6.35",
        "[1,0]<stdout>: 1048576 262144 float sum -1 309.4 3.39 6.35 0 307.3 3.41 6.40 0",
        "[0] 1048576 262144 float sum -1[0] 309.4 3.39 6.35 0[0] 307.3 3.41 6.40 0",
        "0: 1048576 262144 float sum -1 309.4 3.39 6.35 0 307.3 3.41 6.40 0",
        "2024-12-04T05:27:44 | 1048576 1048576 f8e4m3 sum -1 309.4 3.39 6.35 0 307 3.4 6.4 0",
    ],
)
def test_a_row_is_read_in_every_form_that_the_programs_print(tmp_path: Path, row: str) -> None:
    (table,) = read(tmp_path, HEAD + RANKS + row + "\n", "all_reduce.log")
    assert table.rows == (ROWS[0],)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("sum -1 100 10.74 20.13 0 100 10.74 20.13 0", "all_reduce"),
        ("sum -1 100 10.74 10.07 0 100 10.74 10.07 0", "reduce_scatter"),
        ("none -1 100 10.74 10.07 0 100 10.74 10.07 0", "all_gather"),
        ("none -1 100 10.74 10.07 0 100 10.74 10.07 N/A", "all_to_all"),
        ("none -1 100 10.74 10.74 0 100 10.74 10.74 N/A", "send_recv"),
    ],
)
def test_bandwidths_say_the_collective_where_no_line_does(
    tmp_path: Path, words: str, kind: Kind
) -> None:
    (table,) = read(tmp_path, HEAD + RANKS + f"1073741824 268435456 float {words}\n")
    assert table.kind == kind


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("$ ./build/alltoall_perf -b 8 -e 128M -f 2 -g 8", "all_to_all"),
        ("# Collective test starting: all_gather_perf", "all_gather"),
        ("mpirun -np 16 /opt/rccl-tests/build/reduce_scatter_perf -b 1M", "reduce_scatter"),
        ("srun sendrecv_perf", "send_recv"),
    ],
)
def test_the_program_that_ran_says_the_collective(tmp_path: Path, line: str, kind: Kind) -> None:
    row = "1048576 262144 float none -1 309.4 3.39 3.18 0 307.3 3.41 3.20 0\n"
    assert read(tmp_path, f"{line}\n{HEAD}{RANKS}{row}")[0].kind == kind


def test_several_tables_of_a_log_are_apart_and_a_size_that_ran_twice_counts_once(
    tmp_path: Path,
) -> None:
    again = REDUCED.replace("309.4", "311.4").replace("26217", "26219")
    gather = REDUCED.replace("sum", "none")
    text = f"all_reduce_perf\n{HEAD}{RANKS}{REDUCED}{again}all_gather_perf\n{HEAD}{RANKS}{gather}"
    both = read(tmp_path, text)
    assert [table.kind for table in both] == ["all_reduce", "all_gather"]
    times = [row.seconds for row in both[0].rows]
    assert times == pytest.approx([310.4e-6, 26218e-6])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("step 1 loss 2.0\n", ("nccl-tests", "log.txt")),
        ("8 2 float sum -1 42.5 0.00 0.00 0 40.0 0.00 0.00 0\n", ("--collective",)),
        ("all_reduce_perf\n1024 256 float sum -1 30.0 0.03 0.06 0\n", ("--devices",)),
        ("all_reduce_perf\n1024 256 float sum -1 nan 0.1 0.1 0\n", ("nccl-tests", "log.txt")),
        ("all_reduce_perf\n1024 256 float sum -1 0.0 0.1 0.1 0\n", ("nccl-tests", "log.txt")),
    ],
)
def test_what_is_missing_is_said_with_the_option_that_gives_it(
    tmp_path: Path, text: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(NcclTestsError, check=names(*named)):
        read(tmp_path, text)


def test_what_the_user_says_goes_before_what_the_file_does(tmp_path: Path) -> None:
    """A group of 8 prints 7/8 of the algorithm's bandwidth, whatever the header says."""
    row = "1048576 262144 float none -1 100.0 10.49 9.18 0 100.0 10.49 9.18 0\n"
    (table,) = read(tmp_path, HEAD + RANKS + row, kind="all_gather", ranks=8)
    assert (table.kind, table.ranks, table.nodes) == ("all_gather", 8, 0)


@pytest.mark.parametrize("given", [{"kind": "all_gather"}, {"ranks": 8}])
def test_what_the_user_says_is_refused_where_bandwidths_contradict_it(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(NcclTestsError, check=names("1.875", "--collective", "--devices")):
        read(tmp_path, HEAD + RANKS + REDUCED, **given)
