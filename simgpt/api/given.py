"""Kinds of values that functions of `import simgpt` take: as in a shell, or as in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

Text = str | PathLike[str]
Texts = Text | Sequence[Text]
Settings = Mapping[str, Any] | Sequence[str] | str  # key=value, several times
Plan = Text | Mapping[str, Any]
Swept = Mapping[str, Sequence[Any]] | Sequence[str] | str
Tokens = float | str  # 300e9, "300B"
Compute = Literal["machine", "profile", "measured"]
Device = Literal["auto", "cpu", "cuda"]
