"""The model: a GPT's shape, its parameter count and its FLOPs by the published formulas."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from workload.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT:
    """A decoder-only transformer as GPT-2 has it: pre-LayerNorm, learned positions, biases.

    Widths are in elements, `sequence` in tokens. With `tied` the classifier shares the token
    embedding's table.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    sequence: int
    vocab: int
    tied: bool = True
    source: str = "given by the user"

    def __post_init__(self) -> None:
        for key in ("layers", "hidden", "heads", "ffn", "sequence", "vocab"):
            if getattr(self, key) < 1:
                raise ModelError(f"{self.name}: {key}={getattr(self, key)} must be at least 1")
        if self.hidden % self.heads:
            raise ModelError(
                f"{self.name}: heads={self.heads} does not divide hidden={self.hidden}"
            )

    @property
    def parameters(self) -> int:
        """Trained parameters, exactly.

        Source: Narayanan et al. (SC21), eq. 2: 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) for
        ffn = 4 h; here with any ffn, and with the last norm's 2 h that the formula leaves out.
        """
        h, f = self.hidden, self.ffn
        layer = 4 * h * h + 2 * h * f + 9 * h + f
        tables = (self.vocab * (1 if self.tied else 2) + self.sequence) * h
        return self.layers * layer + tables + 2 * h

    def model_flops(self, batch: int) -> int:
        """FLOPs of one step of `batch` sequences, without recomputation.

        Source: Narayanan et al. (SC21), eq. 3 without its recomputation:
        72 B s L h^2 (1 + s/(6 h) + V/(12 L h)) for ffn = 4 h. Attention counts the whole square.
        """
        tokens = batch * self.sequence
        return 3 * tokens * (self.layers * self._layer_flops_per_token + self._head_flops_per_token)

    def hardware_flops(self, batch: int) -> int:
        """FLOPs of one step with every layer recomputed once in the backward pass.

        Source: Narayanan et al. (SC21), eq. 3: 96 B s L h^2 (1 + s/(6 h) + V/(16 L h)). This is the
        numerator of every "% of peak" that AxoNN publishes.
        """
        tokens = batch * self.sequence
        return self.model_flops(batch) + tokens * self.layers * self._layer_flops_per_token

    @property
    def _layer_flops_per_token(self) -> int:
        return 8 * self.hidden**2 + 4 * self.hidden * self.ffn + 4 * self.sequence * self.hidden

    @property
    def _head_flops_per_token(self) -> int:
        return 2 * self.hidden * self.vocab


def model_names() -> list[str]:
    """The presets' names, family by family."""
    return list(_presets())


def find_model(name: str) -> GPT:
    """The preset of that name; a ModelError names the nearest ones if there is none."""
    presets = _presets()
    if name in presets:
        return presets[name]
    near = difflib.get_close_matches(name, presets, n=3, cutoff=0.4) or list(presets)
    raise ModelError(f"unknown model {name!r}; did you mean {', '.join(near)}?")


@cache
def _presets() -> dict[str, GPT]:
    text = resources.files("workload").joinpath("models.toml").read_text(encoding="utf-8")
    families = tomllib.loads(text)
    return {
        name: _preset(name, shape, family)
        for family in families.values()
        for name, shape in family["models"].items()
    }


def _preset(name: str, shape: list[int], family: dict[str, Any]) -> GPT:
    layers, hidden, heads, *rest = shape
    return GPT(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        sequence=rest[0] if rest else family["defaults"]["sequence"],
        vocab=family["defaults"]["vocab"],
        source=family["source"],
    )


def read_model(path: Path) -> GPT:
    """A model from a TOML file with the keys of `GPT`; `ffn` defaults to 4 hidden, `name` to the
    file's."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read the model {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is no TOML file: {error}") from None
    kinds = {"name": str, "source": str, "tied": bool}
    known = [field.name for field in fields(GPT)]
    for key, value in table.items():
        if key not in known:
            raise ModelError(f"{path}: unknown key {key!r}; known: {', '.join(known)}")
        if type(value) is not kinds.get(key, int):
            raise ModelError(f"{path}: {key} = {value!r} must be {kinds.get(key, int).__name__}")
    missing = [k for k in ("layers", "hidden", "heads", "sequence", "vocab") if k not in table]
    if missing:
        raise ModelError(f"{path}: {', '.join(missing)} missing")
    return GPT(**{"name": path.stem, "ffn": 4 * table["hidden"], **table})
