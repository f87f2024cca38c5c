"""A published checkpoint: one file of safetensors, or several with an index, checked by their
headers before a tensor is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from os import close
from pathlib import Path
from typing import Any

from executor.errors import LaunchError, WeightsError
from executor.launching.sentences import is_panic
from executor.published.config import Document, check_config, config_beside
from executor.published.families import HEAD, Family, family_of
from executor.published.names import published
from executor.published.parameter import Shape
from topologies.files.printable import path_shown, shown
from topologies.files.reading import TABLE_BYTES, UserFile, open_regular
from topologies.records import record
from workload.gpt import GPT

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
INDEX_FILE = UserFile("index of weights", WeightsError, most_bytes=TABLE_BYTES)
DTYPES = ("F64", "F32", "BF16", "F16")  # as safetensors calls them


@record
class Stored:
    """A tensor in a file: where it lies, its name there, and what the header says of it."""

    path: Path
    name: str
    shape: Shape
    dtype: str


@record
class Checkpoint:
    """The tensors of a checkpoint by the names that transformers saves them under."""

    origin: str
    config: Document | None
    tensors: dict[str, Stored]


def require_safetensors() -> None:
    """Refuse to go on without the package that reads and writes weights."""
    if find_spec("safetensors") is None:
        raise LaunchError("safetensors is not installed; `pip install 'simgpt[run]'` brings it")


def checkpoint_of(path: Path, gpt: GPT) -> Checkpoint:
    """The checkpoint of a folder or a file, whose tensors are those of the model: none missing,
    none too many, all of its shapes. A WeightsError names what is not so."""
    family = family_of(gpt)
    folder, files, listed = _files(path)
    config = config_beside(folder)
    if config is not None:
        check_config(config, gpt, folder)
    origin, tensors = path_shown(path), {}
    for file in files:
        for stored in _headers(file):
            name = _saved_as(stored.name, family)
            if name in tensors:
                raise WeightsError(f"{origin} holds {shown(name)} twice")
            tensors[name] = stored
    if absent := [name for name in listed if _saved_as(name, family) not in tensors]:
        raise WeightsError(f"{origin}: {INDEX} lists {_some(absent)}, which no file of it holds")
    without_use = [name for name in tensors if _is_without_use(name, family)]
    for name in without_use:
        del tensors[name]
    _check(tensors, gpt, origin)
    return Checkpoint(origin, config, tensors)


def _files(path: Path) -> tuple[Path, list[Path], Collection[str]]:
    """The folder of a checkpoint, its files, and the tensors that an index lists."""
    if not path.is_dir():
        return path.parent, [path], ()
    if (path / FILE).exists():
        return path, [path / FILE], ()
    if not (path / INDEX).exists():
        raise WeightsError(
            f"{path_shown(path)} holds neither {FILE} nor {INDEX}; weights in other formats are "
            "not read"
        )
    document = INDEX_FILE.document(path / INDEX)
    places = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{path_shown(path / INDEX)} has no weight_map of tensors and files")
    for name in places.values():
        if not isinstance(name, str) or Path(name).name != name or "\0" in name:
            raise WeightsError(f"{path_shown(path / INDEX)}: {shown(name)} is not a file beside it")
    return path, [path / name for name in sorted(set(places.values()))], places.keys()


@contextmanager
def opened(path: Path, framework: str) -> Iterator[Any]:
    """A file of safetensors, for "numpy" or "pt"; a WeightsError says why it is none."""
    from safetensors import SafetensorError, safe_open

    try:
        close(open_regular(path))
        with safe_open(path, framework=framework) as file:
            yield file
    except OSError as error:
        why = error.strerror or str(error)
        raise WeightsError(f"cannot read the weights {path_shown(path)}: {why}") from None
    except BaseException as error:
        if not isinstance(error, SafetensorError) and not is_panic(error):
            raise
        raise WeightsError(f"{path_shown(path)} is not a file of safetensors: {error}") from None


def _headers(path: Path) -> list[Stored]:
    with opened(path, "numpy") as file:
        parts = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118
        return [Stored(path, n, tuple(p.get_shape()), str(p.get_dtype())) for n, p in parts]


def _saved_as(name: str, family: Family) -> str:
    """A tensor's name as the model with its classifier is saved; others are saved without the
    prefix."""
    bare = name == HEAD or name.startswith(family.prefix)
    return name if bare else family.prefix + name


def _is_without_use(name: str, family: Family) -> bool:
    return family.without_use.fullmatch(name.removeprefix(family.prefix)) is not None


def _check(tensors: dict[str, Stored], gpt: GPT, origin: str) -> None:
    wanted = {
        name: (shape, each.longer)
        for each in published(gpt).values()
        for name, shape in zip(each.names, each.shapes, strict=True)
    }
    beside = [each for one in published(gpt).values() for each in one.zeros]
    wanted |= {name: (shape, False) for name, shape in beside if name in tensors}
    if gpt.tied and HEAD in tensors:  # equal to the embedding, as is checked when it is read
        wanted[HEAD] = ((gpt.vocab, gpt.hidden), False)
    if unknown := [tensors[name].name for name in tensors if name not in wanted]:
        of_experts = not gpt.moe.experts and any("expert" in name for name in unknown)
        experts = ": its layers are mixtures of experts" * of_experts
        raise WeightsError(f"{origin} holds {_some(unknown)}, which {gpt.name} has not{experts}")
    if missing := [name for name in wanted if name not in tensors]:
        raise WeightsError(f"{origin} lacks {_some(missing)}, which {gpt.name} has")
    for name, (shape, longer) in wanted.items():
        found = tensors[name]
        rows = found.shape[:1] if longer and found.shape[:1] > shape[:1] else shape[:1]
        if found.shape != (*rows, *shape[1:]):
            raise WeightsError(
                f"{origin}: {shown(found.name)} is {_by(found.shape)}, but {gpt.name} needs "
                f"{_by(shape)}{' or more rows' * longer}"
            )
        if found.dtype not in DTYPES:
            raise WeightsError(
                f"{origin}: {shown(found.name)} is stored as {found.dtype}; {', '.join(DTYPES)} "
                "are read"
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return shown(names[0]) + more


def _by(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one number"
