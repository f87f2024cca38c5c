"""What a checkpoint's manifest says, and what of it cannot be; free of torch.

    {"sha256": of what follows,
     "manifest": {"format", "step", what `belonging.about` says of the run,
                  "files": {"rank-00000.safetensors": {"nbytes", "sha256"}, …},
                  "tensors": {name: {"layout": {…}, "ranks": [the ranks that wrote a part]}, …}}}

The digest tells what a disk has changed; a manifest of another program has a right one. So each
number must be whole and in its range, each tensor's file among those that have a digest, and a
tensor no larger than the files that its parts are in.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.checkpoints.errors import CheckpointError, DamagedCheckpointError
from executor.launching.task_specs import AdamW
from executor.training.learning_rate import Schedule
from topologies.errors import SimgptError
from topologies.files.printable import path_shown, shown
from topologies.files.reading import ANSWER_BYTES, UserFile
from topologies.records import record
from workload.grid import Grid
from workload.layout import STARTS, Layout
from workload.plan_text import parse_plan
from workload.words.former_words import axes_now, keys_now

if TYPE_CHECKING:
    from cattrs import Converter

FORMAT = "simgpt-checkpoint-1"
FILE = UserFile("manifest", DamagedCheckpointError, ANSWER_BYTES)
PLAIN = (int, float, str, bool)  # kinds of a plan's values
MOST = 2**62  # of any number: it fits into 64 bits, and so do small multiples of it
_SHA256 = re.compile(r"[0-9a-f]{64}")


class _WrongError(ValueError):
    """A value that no manifest has."""


@record
class Written:
    """A file as it should be found again: how long it is, and the SHA-256 of its bytes."""

    nbytes: int
    sha256: str


@record
class SavedTensor:
    """How a tensor is cut, and the ranks that wrote a part of it."""

    layout: Layout
    ranks: tuple[int, ...]


@record(slots=False, kw_only=True)
class Manifest:
    """A manifest as it is read. What a run did not say when it was written is None."""

    format: str
    step: int
    model: dict[str, Any]
    plan: dict[str, Any]
    batch: int
    seed: int
    optimizer: str
    adamw: AdamW
    schedule: Schedule
    files: dict[str, Written]
    tensors: dict[str, SavedTensor]
    text: str | None = None
    tokenizer: str | None = None
    text_sha256: str | None = None
    tokenizer_sha256: str | None = None
    steps: int | None = None

    @property
    def layouts(self) -> dict[str, Layout]:
        """How each tensor is cut."""
        return {name: tensor.layout for name, tensor in self.tensors.items()}

    @cached_property
    def grid(self) -> Grid:
        """The grid of the ranks that wrote it."""
        return parse_plan(self.plan).grid


def rank_file(rank: int) -> str:
    """The name of the file that a rank writes."""
    return f"rank-{rank:05}.safetensors"


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """The content of a manifest's file."""
    body = json.dumps(manifest, sort_keys=True)
    return json.dumps({"sha256": _digest(body), "manifest": json.loads(body)})


def read_manifest(path: Path) -> Manifest:
    """A manifest that is what was written; a DamagedCheckpointError if it is not."""
    text = FILE.text(path)
    FILE.check_values(text, path_shown(path))
    try:
        document = json.loads(text)
        raw = document["manifest"]
        is_whole = document["sha256"] == _digest(json.dumps(raw, sort_keys=True))
    except (ValueError, KeyError, TypeError, RecursionError):
        is_whole, raw = False, None
    if not is_whole or not isinstance(raw, dict):
        raise DamagedCheckpointError(f"{path_shown(path)} is not what was written")
    if raw.get("format") != FORMAT:
        raise CheckpointError(f"{path_shown(path.parent)} is not a checkpoint of this version")
    try:
        return _checked(_structured(_in_words_of_today(raw)))
    except _WrongError as error:
        why = str(error)
    raise DamagedCheckpointError(f"{path_shown(path)} is not what was written: {why}")


def _in_words_of_today(raw: dict[str, Any]) -> dict[str, Any]:
    """A manifest of version 0.2 with the names of today for axes and for the plan's fields."""
    found = {**raw, "plan": keys_now(raw.get("plan"))}
    tensors = raw.get("tensors")
    if isinstance(tensors, dict):
        found["tensors"] = {name: _tensor_now(tensor) for name, tensor in tensors.items()}
    return found


def _tensor_now(tensor: Any) -> Any:
    layout = tensor.get("layout") if isinstance(tensor, dict) else None
    if not isinstance(layout, dict):
        return tensor
    own = {key: _axes_now(layout[key]) for key in ("split", "flat") if key in layout}
    return {**tensor, "layout": {**layout, **own}}


def _axes_now(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_axes_now, value))
    return axes_now(value) if isinstance(value, str) else value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _structured(raw: dict[str, Any]) -> Manifest:
    from cattrs import BaseValidationError, transform_error

    try:
        manifest: Manifest = _converter().structure(raw, Manifest)
    except BaseValidationError as error:
        raise _WrongError(shown(transform_error(error, path="manifest")[0])) from None
    return manifest


@cache
def _converter() -> Converter:
    """What takes a value only as JSON has it: of itself cattrs would make numbers of texts."""
    from cattrs import Converter

    converter = Converter()
    for kind, kinds in {int: (int,), float: (float, int), str: (str,)}.items():

        def plain(value: Any, _: Any, kind: type = kind, kinds: tuple[type, ...] = kinds) -> Any:
            if type(value) not in kinds:
                raise _WrongError(f"{shown(value)} is not a {kind.__name__}")
            if kind is int and not 0 <= value <= MOST:
                raise _WrongError(f"{shown(value)} is out of range")
            return value

        converter.register_structure_hook(kind, plain)
    return converter


def _checked(manifest: Manifest) -> Manifest:
    for key, value in manifest.plan.items():
        if any(type(each) not in PLAIN for each in (value if type(value) is list else [value])):
            raise _WrongError(f"plan: {shown(key)} is {shown(value)}")
    try:
        grid = manifest.grid
    except SimgptError as error:
        raise _WrongError(f"plan: {error}") from None
    names = manifest.files
    if len(names) != grid.ranks or any(rank_file(rank) not in names for rank in range(len(names))):
        raise _WrongError(f"files: {len(names)} are not those of {shown(grid.ranks)} ranks")
    for name, file in names.items():
        if not _SHA256.fullmatch(file.sha256):
            raise _WrongError(f"files: {name} has no SHA-256")
    for name, tensor in manifest.tensors.items():
        if wrong := _wrong(tensor, grid, names):
            raise _WrongError(f"tensors: {shown(name)}: {wrong}")
    return manifest


def _wrong(tensor: SavedTensor, grid: Grid, files: Mapping[str, Written]) -> str:
    """What a tensor cannot be, if it is that."""
    layout, ranks = tensor.layout, tensor.ranks
    if not ranks or len({*ranks}) < len(ranks) or max(ranks) >= grid.ranks:
        return "its ranks are not some of the run's"
    axes = {axis for each in (*layout.split, layout.flat) for axis in each}
    known = grid.coordinates(0).keys()
    if not axes <= known or layout.starts not in STARTS:
        return "its layout has words that none has"
    widths = zip(layout.shape, layout.padded, strict=False)
    if not len(layout.shape) == len(layout.padded) == len(layout.split) > 0:
        return "its layout has not each dimension"
    held = sum(files[rank_file(rank)].nbytes for rank in ranks)
    if any(shape > padded for shape, padded in widths) or prod(layout.padded) > held:
        return "its sizes are not those of its files"
    return "" if _is_even(layout, grid) else "its layout does not split evenly"


def part_shape(layout: Layout, grid: Grid) -> tuple[int, ...]:
    """The shape of every rank's part."""
    parts = (grid.size(*axes) for axes in layout.split)
    tile = [width // part for width, part in zip(layout.padded, parts, strict=True)]
    return ((prod(tile) + layout.tail) // grid.size(*layout.flat),) if layout.flat else (*tile,)


def _is_even(layout: Layout, grid: Grid) -> bool:
    """Whether every rank's part is of that shape."""
    last = layout.bands or layout.padded[-1:]
    widths = [*((width,) for width in layout.padded[:-1]), last]
    parts = [grid.size(*axes) for axes in layout.split]
    tiled = all(n % part == 0 for own, part in zip(widths, parts, strict=True) for n in own)
    rest = (prod(layout.padded) // prod(parts) + layout.tail) % grid.size(*layout.flat)
    return tiled and sum(last) == layout.padded[-1] and not rest
