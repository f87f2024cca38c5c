"""Waits and live ranges in worlds of a few ops."""

from __future__ import annotations

from tests.blocks import BLOCK
from workload.dataflow import retired_at, waits
from workload.op import COMPUTE, ROLES, Buffer, Op
from workload.structure import Structure


def op(name: str, reads: str = "", writes: str = "", stream: str = COMPUTE) -> Op:
    return Op(name, "add", tuple(reads.split()), tuple(writes.split()), BLOCK, stream=stream)


def test_an_op_waits_for_the_writer_of_what_it_reads_on_another_stream() -> None:
    ops = [op("a", "", "p"), op("b", "p", "q", "tp"), op("c", "q", "r")]
    assert waits(ops) == [(), (0,), (1,)]


def test_an_op_waits_for_no_one_on_its_own_stream() -> None:
    assert waits([op("a", "", "p"), op("b", "p", "q")]) == [(), ()]


def test_a_writer_waits_for_readers_on_other_streams() -> None:
    ops = [op("a", "", "p"), op("b", "p", "q", "tp"), op("c", "", "p")]
    assert waits(ops)[2] == (1,)


def test_a_writer_waits_for_the_writer_before_it_on_another_stream() -> None:
    ops = [op("a", "", "p", "tp"), op("b", "", "p"), op("c", "", "p", "z")]
    assert waits(ops) == [(), (0,), (1,)]
    ops = [op("a", "", "p", "tp"), op("b", "", "p", "z")]  # no compute before either
    assert waits(ops) == [(), (0,)]


def test_an_op_of_a_communication_stream_follows_the_compute_issued_before_it() -> None:
    ops = [op("a", "", "p"), op("b", "w", "q", "z"), op("c", "", "r"), op("d", "w", "s", "z")]
    assert waits(ops) == [(), (0,), (), (2,)]


def test_of_several_ops_of_one_stream_the_latest_is_awaited() -> None:
    ops = [op("a", "w", "p", "z"), op("b", "v", "q", "z"), op("c", "p q", "r")]
    assert waits(ops)[2] == (1,)


def test_an_asynchronous_op_is_known_done_when_a_later_one_of_its_stream_is_awaited() -> None:
    ops = [op("a", "w", "p", "z"), op("b", "v", "q", "z"), op("c", "q", "r"), op("d", "r", "s")]
    assert retired_at(ops, waits(ops)) == [2, 2, 2, 3]


def test_an_asynchronous_op_that_nobody_awaits_is_done_at_the_end() -> None:
    ops = [op("a", "w", "p", "z"), op("b", "", "q"), op("c", "q", "r")]
    assert retired_at(ops, waits(ops)) == [2, 1, 2]


def test_memory_of_a_small_world_by_hand() -> None:
    buffers = {
        "w": Buffer("w", (4,), "fp32", "parameters", persistent=True),
        "p": Buffer("p", (2,), "fp32", "activations"),
        "q": Buffer("q", (8,), "fp32", "workspace"),
    }
    ops = [op("a", "w", "p"), op("b", "p", "q"), op("c", "w", "w")]
    outline = Structure(ops, buffers)
    assert outline.releases == [[], ["p", "q"], []]
    levels = outline.levels([buffer.nbytes for buffer in buffers.values()])
    assert levels.sum(axis=0).tolist() == [16 + 8, 16 + 8 + 32, 16]
    assert levels[ROLES.index("workspace")].tolist() == [0, 32, 0]


def test_what_an_overlapped_collective_reads_lives_until_it_is_awaited() -> None:
    buffers = {name: Buffer(name, (1,), "fp32", "activations") for name in "pqr"}
    ops = [op("a", "", "p"), op("b", "p", "q", "z"), op("c", "", "r"), op("d", "q", "r")]
    assert Structure(ops, buffers).releases == [[], [], [], ["p", "q", "r"]]


def test_what_several_streams_read_lives_until_the_last_of_them_is_awaited() -> None:
    """A compute op that touches it later is done sooner, and so is another stream's collective; one
    that nobody awaits is done with the step."""
    buffers = {name: Buffer(name, (1,), "fp32", "activations") for name in "pqrst"}
    ops = [op("a", "", "p"), op("b", "p", "q", "y"), op("c", "p", "r", "z"), op("d", "p", "s")]
    y_last = [*ops, op("e", "r", "t"), op("f", "q", "t"), op("g", "", "t")]
    assert Structure(y_last, buffers).releases[5:] == [["p", "q"], ["t"]]
    z_last = [*ops, op("e", "q", "t"), op("f", "r", "t"), op("g", "", "t")]
    assert Structure(z_last, buffers).releases[5:] == [["p", "r"], ["t"]]
    unawaited = [*ops, op("e", "r", "t"), op("f", "", "t"), op("g", "", "s")]
    assert Structure(unawaited, buffers).releases[5:] == [["t"], ["p", "q", "s"]]
