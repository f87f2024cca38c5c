"""Text through a tokenizer file."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from executor.data import tokenized as module
from executor.data.dataset import Dataset
from executor.data.sources import check_data, read_data
from executor.errors import LaunchError, TextError
from tests.executor.data.megatron import write_indexed
from tests.messages import names
from workload.gpt import find_model

TINY = replace(find_model("tiny-30k"), sequence=4, vocab=6)
WORDS = ["<unk>", "the", "step", "loss", "falls", "rank"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """Words between spaces, as Hugging Face's tokenizers write it to a file."""
    model = {
        "type": "WordLevel",
        "vocab": {w: i for i, w in enumerate(WORDS)},
        "unk_token": "<unk>",
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model})
    )
    return str(path)


def text(tmp_path: Path, content: bytes = b"the loss falls\nstep the rank other") -> str:
    path = tmp_path / "text"
    path.write_bytes(content)
    return str(path)


pytest.importorskip("tokenizers")


def test_a_text_becomes_the_tokens_of_its_words(tmp_path: Path, tokenizer: str) -> None:
    data = read_data(text(tmp_path), tokenizer)
    assert isinstance(data, Dataset)
    assert data.sources[0].values.tolist() == [1, 3, 4, 2, 1, 5, 0]
    check_data(data, TINY)
    with pytest.raises(TextError, check=names("text", "5", "vocab=5")):
        check_data(data, replace(TINY, vocab=5))


def test_what_is_no_tokenizer_or_no_text_is_refused(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(TextError, check=names("other.json", "tokenizer.json")):
        read_data(text(tmp_path), str(tmp_path / "other.json"))
    with pytest.raises(TextError, check=names("/none", os.strerror(errno.ENOENT))):
        read_data(text(tmp_path), "/none")
    with pytest.raises(TextError, check=names("UTF-8", "byte 2")):
        read_data(text(tmp_path, b"ab\xff"), tokenizer)
    with pytest.raises(TextError, check=names("--tokenizer", str(tmp_path / "a"))):
        read_data(write_indexed(tmp_path / "a", [[1]]), tokenizer)


def test_a_text_too_long_for_every_rank_is_refused(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    with pytest.raises(TextError, check=names("10", ".bin", ".idx")):
        read_data(text(tmp_path), tokenizer)


def test_without_the_package_the_option_says_what_brings_it(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, check=names("pip install 'simgpt[data]'")):
        read_data(text(tmp_path), tokenizer)
