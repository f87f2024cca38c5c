"""Tokenizer files that the library fails at, or that ask for more than their text is worth."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executor.data import tokenized as module
from executor.data.tokenized import tokenized
from executor.errors import TextError
from tests.simgpt.face import simgpt

pytest.importorskip("tokenizers")

WORDS = {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1}, "unk_token": "<unk>"}
TEXT = ("a" * 39 + "b a b \xe9\n").encode() * 10
BPE = {"type": "BPE", "vocab": {"a": 0, "aa": 1, "b": 2}, "merges": [["a", "a"]]}


def document(model: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    split = {"pre_tokenizer": {"type": "Whitespace"}}
    return {"version": "1.0", **split, "model": model or WORDS, **parts}


def replacing(pattern: dict[str, str], content: str, times: int = 1) -> dict[str, Any]:
    each = {"type": "Replace", "pattern": pattern, "content": content}
    return {"type": "Sequence", "normalizers": [each] * times}


def split_by(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


NO_FILES: dict[str, Any] = {
    "a merge without its prefix": document(
        {
            "type": "BPE",
            "continuing_subword_prefix": "##",
            "vocab": {"a": 0, "##b": 1, "ab": 2, "b": 3},
            "merges": [["a", "b"]],
        }
    ),
    "a merge of unknown words": document(BPE | {"merges": [["a", "z"]]}),
    "a dropout above 1": document(BPE | {"dropout": 9.5}),
    "an unknown id that is none": document(
        {"type": "Unigram", "unk_id": 7, "vocab": [["a", -1.0]]}
    ),
    "ids of 33 bits": document(WORDS | {"vocab": {"<unk>": 2**32}}),
    "negative ids": document(WORDS | {"vocab": {"<unk>": -1}}),
    "a regex that is none": document(pre_tokenizer=split_by("(")),
    "a map that is none": document(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    ),
    "nothing": {},
    "a list": [],
    "null": None,
}
NO_TOKENS: dict[str, Any] = {
    "no unknown word": document(WORDS | {"vocab": {"b": 0}}),
    "no unknown piece": document({"type": "Unigram", "unk_id": None, "vocab": [["b", -1.0]]}),
    "a long word": document(
        {
            **{"type": "WordPiece", "unk_token": "zz", "continuing_subword_prefix": "##"},
            **{"max_input_chars_per_word": 0, "vocab": {"a": 0}},
        }
    ),
    "a regex that tries for ever": document(normalizer=replacing({"Regex": "(a+)+$"}, "tp")),
    "pieces of no letter": document(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "letters that double": document(normalizer=replacing({"String": "a"}, "aa", 40)),
    "a page for each letter": document(normalizer=replacing({"Regex": ""}, "y" * 100_000)),
}


def written(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "tokenizer.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("case", NO_FILES)
def test_a_file_that_the_library_does_not_read_is_named(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, NO_FILES[case])
    with pytest.raises(TextError) as raised:
        tokenized(TEXT, "text.txt", path)
    assert path in str(raised.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("content", ["", "[" * 100_000, '{"model": {"vocab": {"\\ud800": 0}}}'])
def test_what_is_no_document_is_named(content: str, tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"tokenizer\.json"):
        tokenized(TEXT, "text.txt", written(tmp_path, content))


LONG = "letters that double"  # until a second or two of a process is over


@pytest.mark.parametrize(
    "case",
    [pytest.param(each, marks=[pytest.mark.slow] if each == LONG else []) for each in NO_TOKENS],
)
def test_a_text_that_the_library_makes_no_tokens_of_is_named(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, NO_TOKENS[case])
    with pytest.raises(TextError) as raised:
        tokenized(TEXT, "text.txt", path)
    assert path in str(raised.value)
    assert "text.txt" in str(raised.value)
    assert capfd.readouterr() == ("", "")


MEASURED = """
import json, resource, sys
from executor.data.tokenized import tokenized
from executor.errors import TextError
try:
    tokenized(b"a" * 500, "text", sys.argv[1])
except TextError:
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize(
    "case", [pytest.param(LONG, marks=pytest.mark.slow), "a page for each letter"]
)
def test_a_small_file_takes_no_memory_beyond_measure(case: str, tmp_path: Path) -> None:
    path = written(tmp_path, NO_TOKENS[case])
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, path], capture_output=True, timeout=120, check=True
    )
    assert int(done.stdout) < 500 * 1024  # KiB


@pytest.mark.parametrize(
    "parts",
    [
        {"padding": {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_id": 0,
                     "pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "<unk>"}},
        {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst",
                        "stride": 0}},
        {"post_processor": {"type": "TemplateProcessing",
                            "single": [{"SpecialToken": {"id": "Q", "type_id": 0}},
                                       {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
                            "special_tokens": {"Q": {"id": "Q", "ids": [5], "tokens": ["Q"]}}}},
        {"decoder": None},
    ],
)  # fmt: skip
def test_all_tokens_of_a_text_are_made_and_no_others(parts: Any, tmp_path: Path) -> None:
    tokens = tokenized(b"a a b a", "text", written(tmp_path, document(**parts)))
    assert tokens.values.tolist() == [1, 1, 0, 1]


def test_tokens_are_the_same_each_time(tmp_path: Path) -> None:
    path = written(tmp_path, document(BPE | {"dropout": 0.5}))
    found = [tokenized(b"aa" * 50, "text", path).values.tolist() for _ in range(2)]
    assert found == [[1] * 50] * 2


def test_added_tokens_and_ids_beyond_the_vocabulary_are_the_models_to_refuse(
    tmp_path: Path,
) -> None:
    added = {"id": 99, "content": "a b", "normalized": False, "special": True}
    added |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    text = tmp_path / "text.txt"
    text.write_text("a b a " * 50)
    for parts in (
        document(added_tokens=[added]),
        document(WORDS | {"vocab": {"<unk>": 2**32 - 1, "a": 2**32 - 2}}),
    ):
        path = written(tmp_path, parts)
        highest = int(tokenized(text.read_bytes(), "text", path).values.max())
        assert highest < 2**32
        words = ("run", "tiny-30k", "--data", str(text), "--tokenizer", path, "--no-predict")
        said = simgpt(*words, "--steps", "1", "--model-set", "vocab=2")
        assert (said.status, len(said.err.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "case", ["no unknown word", pytest.param("a merge without its prefix", marks=pytest.mark.slow)]
)
def test_a_command_refuses_a_tokenizer_in_one_sentence(case: str, tmp_path: Path) -> None:
    path = written(tmp_path, {**NO_FILES, **NO_TOKENS}[case])
    text = tmp_path / "text.txt"
    text.write_bytes(TEXT)
    done = subprocess.run(
        [sys.executable, "-m", "simgpt", "run", "tiny-30k", "--data", str(text),
         "--tokenizer", path, "--no-predict", "--steps", "1"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert path in done.stderr


@pytest.mark.parametrize("special", ["fifo", "folder", "device", "huge"])
def test_a_tokenizer_is_a_regular_file_of_bounded_size(special: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if special == "fifo":
        os.mkfifo(path)
    elif special == "folder":
        path.mkdir()
    elif special == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(module.FILE.most_bytes + 1)
    with pytest.raises(TextError, match=r"tokenizer\.json"):
        tokenized(TEXT, "text.txt", str(path))


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_is_no_fault_of_a_file(
    end: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise end

    monkeypatch.setattr(subprocess, "run", ended)
    with pytest.raises(end):
        tokenized(TEXT, "text.txt", written(tmp_path, document()))


def test_limits_of_the_user_stay_where_they_are_lower(tmp_path: Path) -> None:
    """As `ulimit -v` sets them; with too few addresses to start, nothing is left to say."""
    path = written(tmp_path, document())
    code = f"ulimit -v 200000; exec {sys.executable} -P -m executor.data.encoder"
    size = os.path.getsize(path).to_bytes(8, "little")
    done = subprocess.run(
        ["bash", "-c", code], input=size + Path(path).read_bytes() + b"a b", stdout=subprocess.PIPE,
        timeout=60, check=True,
    )  # fmt: skip
    assert len(done.stdout) == 8
    assert resource.getrlimit(resource.RLIMIT_CPU)[0] == resource.RLIM_INFINITY
