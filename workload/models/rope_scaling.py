"""RoPE scaled for texts longer than those of the pretraining: as a model's field has it, and as a
`config.json` does.

The text names a method and its numbers, as in
`llama3:factor=8:low_freq_factor=1:high_freq_factor=4:original_max_position_embeddings=8192`.
Source of methods and defaults: transformers 5.23, modeling_rope_utils.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from topologies.files.printable import shown
from topologies.records import record
from workload.errors import ModelError

PLAIN = "none"
LINEAR, LLAMA3, YARN = "linear", "llama3", "yarn"
ORIGINAL = "original_max_position_embeddings"
NUMBERS: Mapping[str, tuple[str, ...]] = {
    LINEAR: ("factor",),
    LLAMA3: ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    YARN: (
        *("factor", ORIGINAL, "beta_fast", "beta_slow", "attention_factor", "truncate"),
        "mscale_all_dim",
    ),
}
COMPUTED = ("attention_factor",)  # from the factor, where it is not given
MAY_BE_ZERO = ("truncate", "mscale_all_dim")
MOST = 1e9
SCALINGS = ("rope_scaling", "rope_parameters")  # keys of a config


@record(kw_only=True)
class RopeScaling:
    """A method with its numbers, in tokens and turns; those of other methods are unused.

    "linear" divides all rates by `factor`; "llama3" those of waves longer than a share of the
    original length, with a ramp between two such shares; "yarn" those that turn seldom within it,
    with a ramp between `beta_slow` and `beta_fast` turns (at whole elements, if `truncate`), and
    multiplies queries and keys by `attention_factor`; with `mscale_all_dim`, of latent attention
    alone, it multiplies all of the scores, too.
    """

    method: str
    factor: float
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    original_max_position_embeddings: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: float = 1.0
    mscale_all_dim: float = 0.0

    def __post_init__(self) -> None:
        for key in NUMBERS[self.method]:
            value = getattr(self, key)
            if not (0 if key in MAY_BE_ZERO else 1e-9) <= value <= MOST:
                raise ModelError(f"{key}={value:g} must be above 0 and at most {MOST:g}")
        if self.method == LLAMA3 and self.high_freq_factor <= self.low_freq_factor:
            raise ModelError("high_freq_factor must be above low_freq_factor")
        if self.method == YARN and self.beta_fast <= self.beta_slow:
            raise ModelError("beta_fast must be above beta_slow")

    def __str__(self) -> str:
        usual = {field.name: field.default for field in fields(self)}
        numbers = {key: getattr(self, key) for key in NUMBERS[self.method]}
        said = [f"{k}={n:.12g}" for k, n in numbers.items() if n != usual[k] or k in COMPUTED]
        return ":".join([self.method, *said])

    def as_config(self) -> dict[str, Any]:
        """The table of a `config.json`."""
        table = {key: _whole(getattr(self, key)) for key in NUMBERS[self.method]}
        if self.method == YARN:
            table["truncate"] = bool(self.truncate)
            table |= (
                {} if table.pop("mscale_all_dim") == 0 else {"mscale_all_dim": self.mscale_all_dim}
            )
        return {"rope_type": self.method, **table}

    @property
    def scores_factor(self) -> float:
        """What scores are multiplied by beside 1 / sqrt(width), in latent attention.

        Source: DeepSeek-V2's and V3's released code, class MLA, `softmax_scale`.
        """
        return ramp(self.mscale_all_dim, self.factor) ** 2


def scaling_of(text: str) -> RopeScaling | None:
    """The scaling of a text, None of "none"; a ModelError says what is wrong with it.

    >>> str(scaling_of("linear:factor=4.0"))
    'linear:factor=4'
    """
    if text == PLAIN:
        return None
    method, *words = text.split(":")
    if method not in NUMBERS:
        known = ", ".join((PLAIN, *NUMBERS))
        raise ModelError(f"rope_scaling={shown(text)}: known methods are {known}")
    given = dict(_numbers(text, method, words))
    if method == YARN and "factor" in given:
        given.setdefault("attention_factor", _attention_factor({}, given["factor"]))
    try:
        return RopeScaling(method=method, **given)
    except TypeError:
        pass
    except ModelError as error:
        raise ModelError(f"rope_scaling={shown(text)}: {error}") from None
    raise ModelError(f"rope_scaling={shown(text)} lacks factor")


def spelled_out(text: str) -> str:
    """A scaling's text with the numbers that are computed: the same for the same scaling."""
    return str(scaling_of(text) or PLAIN)


def _numbers(text: str, method: str, words: list[str]) -> Iterator[tuple[str, float]]:
    for word in words:
        key, _, value = word.partition("=")
        if key not in NUMBERS[method]:
            known = ", ".join(NUMBERS[method])
            raise ModelError(
                f"rope_scaling={shown(text)}: {shown(key)} is not a number of {method}; it has "
                f"{known}"
            )
        try:
            yield key, float(value)
        except ValueError:
            raise ModelError(
                f"rope_scaling={shown(text)}: {key}={shown(value)} must be a number"
            ) from None


def text_of_config(document: Mapping[str, Any], *, latent: bool) -> str:
    """The field's text for what a config says of RoPE; "none" where it is plain, of a method that
    is not known, or lacks what a known method needs. `latent` says that the attention is."""
    for name in SCALINGS:
        table = document.get(name)
        if isinstance(table, dict) and rope_type(table) in NUMBERS and not why_not(table, document):
            return str(_scaling(table, document, latent=latent))
    return PLAIN


def why_not(table: Any, document: Mapping[str, Any]) -> str:
    """Why a config's table of a known method cannot be computed; nothing where it can."""
    if not isinstance(table, dict):
        return "it must be a table" if table else ""
    if rope_type(table) not in NUMBERS:
        return ""
    try:
        _scaling(table, document, latent=True)
    except ModelError as error:
        return str(error)
    except (TypeError, KeyError, ValueError, OverflowError, ZeroDivisionError):
        return "a number is missing or is not a number"
    return ""


def _scaling(table: Mapping[str, Any], document: Mapping[str, Any], *, latent: bool) -> RopeScaling:
    given = dict(_of_table(table, rope_type(table), document))
    given |= {} if latent else {"mscale_all_dim": 0.0}
    return RopeScaling(method=rope_type(table), **given)


def is_carried(document: Mapping[str, Any]) -> bool:
    """Whether what a config says of RoPE is in the field's text: plain, or of a known method that
    turns all of a head's elements."""
    for name in SCALINGS:
        table = document.get(name)
        method = rope_type(table)
        if method not in ("", "default", *NUMBERS) or why_not(table, document):
            return False
        if isinstance(table, dict) and table.get("partial_rotary_factor", 1) not in (1, None):
            return False
    return document.get("partial_rotary_factor", 1) in (1, None)


def rope_type(table: Any) -> str:
    """The method that a table of a config names."""
    if not isinstance(table, dict):
        return "" if table is None else shown(table)
    method = table.get("rope_type", table.get("type", ""))
    return method if isinstance(method, str) else shown(method)


def _of_table(
    table: Mapping[str, Any], method: str, document: Mapping[str, Any]
) -> Iterator[tuple[str, float]]:
    longest = document.get("max_position_embeddings")
    given = {key: table[key] for key in NUMBERS[method] if table.get(key) is not None}
    if ORIGINAL in NUMBERS[method]:
        given.setdefault(ORIGINAL, longest)
    if method == YARN:
        given.setdefault("factor", float(longest or 0) / float(given[ORIGINAL]))
        given.setdefault("attention_factor", _attention_factor(table, float(given["factor"])))
    for key, value in given.items():
        yield key, float(value)


def _attention_factor(table: Mapping[str, Any], factor: float) -> float:
    """YaRN's own: 0.1 ln(factor) + 1, or a quotient of two such.

    Source: Peng et al. (YaRN, 2309.00071), section 3.4; DeepSeek's mscale as transformers has it.
    """
    above, below = table.get("mscale"), table.get("mscale_all_dim")
    if above and below:
        return ramp(float(above), factor) / ramp(float(below), factor)
    return ramp(1.0, factor)


def ramp(weight: float, factor: float) -> float:
    """What YaRN multiplies queries and keys by, with a weight of its logarithm."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _whole(number: float) -> float | int:
    return int(number) if number.is_integer() else number
