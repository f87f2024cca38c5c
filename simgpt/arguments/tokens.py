"""Numbers of tokens: `300B`, `4e6`, `8Mi`."""

from __future__ import annotations

from decimal import Decimal, DecimalException
from typing import Any

import click

from simgpt.tables import COUNTS
from topologies.files.printable import shown
from workload.errors import PlanError

MOST_TOKENS = 10**15  # of a step
MOST_TRAINED = 10**18  # of a whole training
DECIMAL = {letter: int(size) for letter, size in COUNTS}
BINARY = {f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)}
SIZES = DECIMAL | BINARY
_LONGEST = 40  # characters of a number


class Tokens(click.ParamType[float]):
    """A number of tokens that a model is trained on: `300e9`, `300B` or `1.5T`."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return tokens_of(value)
        except PlanError as error:
            self.fail(str(error), param, ctx)


class BatchTokens(click.ParamType[int]):
    """A whole number of tokens of a step: `16777216`, `16Mi`, `4M` or `4e6`."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return batch_tokens_of(value)
        except PlanError as error:
            self.fail(str(error), param, ctx)


class Sequences(click.IntRange):
    """A number of sequences of a step; a number of tokens is pointed to their option."""

    def __init__(self, most: int) -> None:
        super().__init__(1, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if _suffix(str(value).strip()) and _exact(value) is not None:
            why = f"{shown(value)} is not a number of sequences"
            self.fail(f"{why}; for tokens, --batch-tokens {value}", param, ctx)
        return super().convert(value, param, ctx)


def tokens_of(text: object) -> float:
    """A number of tokens from its text, at most `MOST_TRAINED`.

    k, M, B and T behind it are powers of 1000; Ki, Mi, Gi and Ti those of 1024.

    >>> tokens_of("300B"), tokens_of(3e11), tokens_of("2Mi")
    (300000000000.0, 300000000000.0, 2097152.0)
    """
    tokens = _exact(text)
    if tokens is None or not 1 <= tokens <= MOST_TRAINED:
        raise PlanError(f"{shown(text)} is not a number of tokens; write it like 300e9, 300B or 1T")
    return float(tokens)


def batch_tokens_of(text: object) -> int:
    """The tokens of a step from their text, by the same words: a whole number, at most
    `MOST_TOKENS`.

    >>> batch_tokens_of("8M"), batch_tokens_of("8Mi"), batch_tokens_of("4e6")
    (8000000, 8388608, 4000000)
    """
    tokens = _exact(text)
    if tokens is not None and tokens > MOST_TOKENS:
        raise PlanError(f"{shown(text)} tokens in a step are more than {MOST_TOKENS:,}")
    if tokens is None or tokens < 1 or tokens != int(tokens):
        raise PlanError(
            f"{shown(text)} is not a whole number of tokens; write it like 4194304, 4Mi, 4M or 4e6"
        )
    return int(tokens)


def as_tokens(key: str, given: object) -> object:
    """The value given for a field of a model: a `sequence` in the same words where it ends in one
    of those letters, any other as it is.

    >>> as_tokens("sequence", "128Ki"), as_tokens("sequence", "4096"), as_tokens("layers", "4k")
    (131072, '4096', '4k')
    """
    is_counted = key == "sequence" and isinstance(given, str)
    return batch_tokens_of(given) if is_counted and _suffix(str(given).strip()) else given


def _suffix(word: str) -> str:
    """The letters behind a number that say how many each of it is; none behind a plain one."""
    return next((end for end in SIZES if word.endswith(end)), "")


def _exact(text: object) -> Decimal | None:
    """The number as it is written, without rounding; none where it is no finite number."""
    word = str(text).strip()
    suffix = _suffix(word)
    if isinstance(text, bool) or len(word) > _LONGEST:
        return None
    try:
        number = Decimal(word.removesuffix(suffix)) * SIZES.get(suffix, 1)
    except DecimalException:
        return None
    return number if number.is_finite() else None
