"""The model: a GPT whose fields go together, and the presets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from topologies.files.reading import shipped_toml
from topologies.records import record
from workload.errors import ModelError
from workload.model.fields import KEYS, ModelFields
from workload.models import counts
from workload.models.field_checks import wrong_fields
from workload.models.spelling import nearest, without_ends, words_of

LIMITED = {key: each.limits for key, each in KEYS.items() if each.limits}


@record(kw_only=True)
class GPT(ModelFields):
    """A model whose fields go together (see `ModelFields`); else a ModelError names them."""

    def __post_init__(self) -> None:
        for key, allowed in LIMITED.items():
            value, (least, most, words) = self.value(key), allowed
            if words and value not in words:
                raise self._wrong(f"{key}={value!r} must be {' or '.join(words)}")
            if not words and value < least:
                raise self._wrong(f"{key}={value} must be at least {least}")
            if not words and value > most:
                raise self._wrong(f"{key}={value} must be at most {most:,}")
        heads = self.attention.heads
        if not self.attention.head_width and self.hidden % heads:
            raise self._wrong(f"heads={heads} does not divide hidden={self.hidden}")
        if heads % self.key_heads:
            raise self._wrong(f"kv_heads={self.key_heads} does not divide heads={heads}")
        for wrong in wrong_fields(self):
            raise self._wrong(wrong)

    def _wrong(self, what: str) -> ModelError:
        return ModelError(f"{self.name}: {what}")

    @property
    def parameters(self) -> int:
        """Trained parameters, exactly."""
        return counts.parameters(self)

    @property
    def active_parameters(self) -> int:
        """The parameters that one token passes."""
        return counts.active_parameters(self)

    def model_flops(self, batch: int) -> int:
        """FLOPs of one step of `batch` sequences, without recomputation."""
        return counts.model_flops(self, batch)

    def masked_flops(self, batch: int) -> int:
        """Of these those that attention's causal mask leaves out."""
        return counts.masked_flops(self, batch)

    def hardware_flops(self, batch: int) -> int:
        """FLOPs of one step with every layer recomputed once in the backward pass."""
        return counts.hardware_flops(self, batch)


def model_names() -> list[str]:
    """The presets' names, family by family."""
    return list(_presets())


def find_model(name: str) -> GPT:
    """The preset of that name in any usual spelling; a ModelError names the nearest ones if there
    is none.

    >>> find_model("meta-llama/Llama-3.1-70B").name
    'llama-3.1-70b'
    """
    presets = _presets()
    words, named = words_of(name), _spellings()
    known = presets.get(name) or named.get(words) or named.get(without_ends(words))
    if known is not None:
        return known
    raise ModelError(f"unknown model {name!r}; {nearest(name, presets)}")


def beyond_preset(name: str) -> tuple[str, ...]:
    """What a preset's model has beyond the fields of `GPT`, in the words of `Described.beyond`.

    >>> beyond_preset("nemotron-4-15b")
    ('squared_relu',)
    """
    families = _families().values()
    return next(tuple(each.get("beyond", ())) for each in families if name in each["models"])


@cache
def _families() -> Mapping[str, Any]:
    return shipped_toml("workload", "models.toml")


@cache
def _presets() -> dict[str, GPT]:
    return {
        name: _preset(name, shape, family)
        for family in _families().values()
        for name, shape in family["models"].items()
    }


@cache
def _spellings() -> dict[tuple[str, ...], GPT]:
    """Presets by the words of their names, and of the other names that a family's table gives."""
    presets, families = _presets(), _families()
    others = {n: of for family in families.values() for n, of in family.get("also", {}).items()}
    names = {name: name for name in presets} | others
    return {words_of(name): presets[preset] for name, preset in names.items()}


def _preset(name: str, shape: list[int] | dict[str, Any], family: dict[str, Any]) -> GPT:
    """A list is [layers, hidden, heads] and perhaps the sequence, a table GPT's keys."""
    if isinstance(shape, list):
        shape = dict(zip(("layers", "hidden", "heads", "sequence"), shape, strict=False))
    given = {"ffn": 4 * shape["hidden"], **family["defaults"], **shape}
    return GPT.of(name=name, source=family["source"], **given)
