"""What `--data` names: a text, an indexed dataset, or several of them with weights."""

from __future__ import annotations

import math
import os
import re

import numpy as np

from executor.data.corpus import BYTES, check_text, read_text
from executor.data.dataset import Dataset, mixture_of
from executor.data.indexed import is_indexed, read_indexed
from executor.data.tokenized import tokenized
from executor.data.tokens import Text, Tokens
from executor.errors import TextError
from workload.gpt import GPT

Data = Text | Dataset
MANUAL = "Python's manual"
NUMBER = r"\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+"


def read_data(text: str | None, tokenizer: str | None = None) -> Data:
    """A text's bytes, or a dataset: of indexed files, of tokenised text, or of a mixture."""
    weighted = mixed(text) if text is not None else None
    if weighted is None and tokenizer is None and not (text is not None and is_indexed(text)):
        return read_text(text)
    return dataset_of(text, tokenizer)


def dataset_of(text: str | None, tokenizer: str | None = None) -> Dataset:
    """What is named as sources of tokens, bytes among them; each is opened, and none is read."""
    weighted = mixed(text) if text is not None else None
    if weighted is None:
        return Dataset((_tokens(text, tokenizer),), mixture_of([1.0]))
    sources = tuple(_tokens(path, tokenizer) for path, _ in weighted)
    return Dataset(sources, mixture_of([weight for _, weight in weighted]))


def check_data(data: Data, gpt: GPT) -> None:
    """Refuse data that are too short for one sequence, or have tokens that the model has not."""
    if isinstance(data, Dataset):
        data.check(gpt)
    else:
        check_text(data, gpt)


def mixed(text: str) -> list[tuple[str, float]] | None:
    """Paths with their weights: `a=0.7,b=0.3`, or as Megatron has it `0.7 a 0.3 b`.

    None for what is no such list, or is the name of a file.

    >>> mixed("a=0.7,b=0.3") == mixed("0.7 a 0.3 b") == [("a", 0.7), ("b", 0.3)]
    True
    """
    if os.path.exists(text):
        return None
    words = text.split()
    if len(words) > 1 and len(words) % 2 == 0 and all(map(_is_number, words[::2])):
        pairs = zip(words[1::2], map(float, words[::2]), strict=True)
        return _checked([*pairs])
    parts = [each.rpartition("=") for each in text.split(",")]
    if not all(path and _is_number(word) for path, _, word in parts):
        return None
    return _checked([(path, float(word)) for path, _, word in parts])


def _checked(pairs: list[tuple[str, float]]) -> list[tuple[str, float]]:
    total = sum(weight for _, weight in pairs)
    for path, weight in pairs:
        if not math.isfinite(total) or weight < 1e-4 * total or not weight:
            raise TextError(
                f"--data: the weight {weight:g} of {path} is less than a ten-thousandth of all"
            )
    return pairs


def _is_number(word: str) -> bool:
    return re.fullmatch(NUMBER, word) is not None


def _tokens(path: str | None, tokenizer: str | None) -> Tokens:
    if path is not None and is_indexed(path):
        if tokenizer is not None:
            raise TextError(f"--tokenizer is for text, and {path} has tokens already")
        return read_indexed(path)
    name = MANUAL if path is None else path
    if tokenizer is not None:
        return tokenized(read_text(path), name, tokenizer)
    text = read_text(path)
    values = np.frombuffer(text, np.uint8) if len(text) else np.zeros(0, np.uint8)
    return Bytes(name, values)


class Bytes(Tokens):
    """A text's bytes, which a vocabulary holds all or not at all."""

    def check(self, vocab: int, model: str) -> None:
        if vocab < BYTES:
            raise TextError(f"{model} has vocab={vocab}; byte tokens need at least {BYTES}")
