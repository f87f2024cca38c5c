"""Data are known again by their content."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from executor.data import identity
from executor.data.identity import text_digest, tokenizer_digest
from executor.errors import TextError
from tests.executor.data.megatron import write_indexed


def test_the_same_text_under_another_name_is_the_same_and_another_text_is_not(
    tmp_path: Path,
) -> None:
    first, second, third = (str(tmp_path / name) for name in "abc")
    Path(first).write_text("once upon a time")
    shutil.copy(first, second)
    Path(third).write_text("once upon a tide")
    assert text_digest(first) == text_digest(second) != text_digest(third)
    assert text_digest(None) not in (text_digest(first), text_digest(third))


def test_of_an_indexed_dataset_both_files_count_and_the_way_it_is_named_does_not(
    tmp_path: Path,
) -> None:
    prefix = write_indexed(tmp_path / "a", [[1, 2, 3], [4, 5]])
    other = write_indexed(tmp_path / "b", [[1, 2], [3, 4, 5]])
    assert text_digest(prefix) == text_digest(f"{prefix}.idx") != text_digest(other)


def test_of_a_mixture_the_order_the_weights_and_each_source_count(tmp_path: Path) -> None:
    a, b = (write_indexed(tmp_path / name, [[ord(name)] * 9]) for name in "ab")
    same = text_digest(f"{a}=0.7,{b}=0.3")
    assert same == text_digest(f"7 {a} 3 {b}")
    others = (f"{a}=0.3,{b}=0.7", f"{b}=0.7,{a}=0.3", f"{a}=0.7,{a}=0.3")
    assert same not in [text_digest(each) for each in others]


def test_a_long_file_counts_by_its_length_and_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "WHOLE_BYTES", 1 << 10)
    monkeypatch.setattr(identity, "PIECE_BYTES", 1 << 6)
    path = tmp_path / "long"
    path.write_bytes(os.urandom(1 << 16))
    found = [text_digest(str(path))]
    for place in (0, (1 << 16) - 1):
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
        found.append(text_digest(str(path)))
    path.write_bytes(path.read_bytes() + b"x")
    found.append(text_digest(str(path)))
    assert len(set(found)) == len(found)


def test_a_tokenizer_is_its_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("{}")
    first = tokenizer_digest(str(path))
    path.write_text("{ }")
    assert first != tokenizer_digest(str(path)) != tokenizer_digest(None)
    with pytest.raises(TextError):
        tokenizer_digest("/dev/zero")
