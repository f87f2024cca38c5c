"""Megatron's indexed datasets: read as they are written, and refused where they are wrong."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executor.data.indexed import MAGIC, read_indexed
from executor.data.sources import check_data, dataset_of, read_data
from executor.errors import TextError
from tests.executor.data.megatron import write_indexed
from tests.messages import names
from workload.gpt import find_model

TINY = replace(find_model("tiny-30k"), sequence=4, vocab=1000)


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64", "int16"])
def test_documents_are_joined_and_cut_where_the_next_begins_with_the_last(
    tmp_path: Path, dtype: str
) -> None:
    prefix = write_indexed(tmp_path / "a", [[500, 501, 502], [510], [520, 521, 522, 523, 524, 525]])
    tokens = read_indexed(prefix)
    assert tokens.values.tolist() == [500, 501, 502, 510, *range(520, 526)]
    # 10 tokens: windows of 5 begin at 0 and at 4; of the ninth's there is no target.
    assert tokens.samples(4) == 2
    assert tokens.windows(np.array([1, 0]), 4).tolist() == [
        [520, 521, 522, 523, 524],
        [500, 501, 502, 510, 520],
    ]


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_a_dataset_is_named_by_its_prefix_or_either_file(tmp_path: Path, ending: str) -> None:
    prefix = write_indexed(tmp_path / "a", [[1, 2, 3, 4, 5]])
    data = read_data(prefix + ending)
    assert data.samples(TINY, 0, 1, 0).tolist() == [[1, 2, 3, 4, 5]]  # type: ignore[union-attr]


def test_a_token_beyond_the_vocabulary_is_named_with_its_file(tmp_path: Path) -> None:
    prefix = write_indexed(tmp_path / "a", [[1, 2, 3, 1000, 5]])
    with pytest.raises(TextError, check=names("a.bin", "1000", "vocab=1000")):
        check_data(read_data(prefix), TINY)
    prefix = write_indexed(tmp_path / "b", [[1, 2, 3, -1, 5]], dtype="int32")
    with pytest.raises(TextError, check=names("b.bin", "-1")):
        check_data(read_data(prefix), TINY)


def test_a_token_that_was_not_looked_at_before_the_run_is_refused_in_its_step(
    tmp_path: Path,
) -> None:
    data = dataset_of(write_indexed(tmp_path / "a", [[1, 2, 3, 4, 5], [6, 7, 8, 1000]]))
    with pytest.raises(TextError, check=names("a.bin", "1000")):
        [data.samples(TINY, step, 1, 0) for step in range(2)]
    with pytest.raises(TextError, check=names("a.bin", "1000")):
        data.first_windows(TINY, 0, 2)


def test_a_dataset_shorter_than_a_sequence_and_a_target_is_refused(tmp_path: Path) -> None:
    for documents in ([[1, 2, 3, 4]], []):
        prefix = write_indexed(tmp_path / "a", documents)
        with pytest.raises(TextError, check=names(f"{4 * len(documents)} tokens", "5")):
            check_data(read_data(prefix), TINY)


def header(version: int = 1, code: int = 8, sequences: int = 1, boundaries: int = 2) -> bytes:
    return MAGIC + struct.pack("<QBQQ", version, code, sequences, boundaries)


ENTRIES = struct.pack("<iqqq", 3, 0, 0, 1)


@pytest.mark.parametrize(
    ("index", "named"),
    [
        (b"", ["a.idx", "MMIDIDX"]),
        (MAGIC, ["a.idx", "MMIDIDX"]),
        (b"PK" + header()[2:] + ENTRIES, ["a.idx", "MMIDIDX"]),
        (header(version=2) + ENTRIES, ["a.idx", "2", "1"]),
        (header(code=7) + ENTRIES, ["a.idx", "float32"]),
        (header(code=99) + ENTRIES, ["a.idx", "99"]),
        (header(sequences=2**60) + ENTRIES, ["62 bytes", str(2**60)]),
        (header() + ENTRIES[:-1], ["a.idx", "61 bytes"]),
        (header() + struct.pack("<iqqq", 3, 8, 0, 1), ["a.idx"]),
        (header() + struct.pack("<iqqq", -3, 0, 0, 1), ["a.idx", "1"]),
        (header() + struct.pack("<iqqq", 3, 0, 0, 2), ["a.idx", "1"]),
        (header() + struct.pack("<iqqq", 4, 0, 0, 1), ["a.bin", "6 bytes", "4"]),
    ],
)
def test_a_wrong_index_is_refused_in_a_sentence(
    tmp_path: Path, index: bytes, named: list[str]
) -> None:
    (tmp_path / "a.idx").write_bytes(index)
    (tmp_path / "a.bin").write_bytes(bytes(6))
    with pytest.raises(TextError, check=names(*named)):
        read_data(str(tmp_path / "a"))


def test_an_index_without_tokens_beside_it_is_refused(tmp_path: Path) -> None:
    prefix = write_indexed(tmp_path / "a", [[1, 2, 3]])
    (tmp_path / "a.bin").unlink()
    with pytest.raises(TextError, check=names("a.bin", os.strerror(errno.ENOENT))):
        read_data(prefix)


def test_tokens_without_an_index_are_not_taken_for_text(tmp_path: Path) -> None:
    prefix = write_indexed(tmp_path / "a", [[1, 2, 3]])
    (tmp_path / "a.idx").unlink()
    with pytest.raises(TextError, check=names("a.idx", os.strerror(errno.ENOENT))):
        read_data(f"{prefix}.bin")
