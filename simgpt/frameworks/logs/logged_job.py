"""A job's model and plan, from the arguments that it has printed into its log.

Arguments are read by the readers of the frameworks' files (`simgpt import`); a log has other names
of some, and the values of all, those included that nobody has set (`logs.toml`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

from simgpt.frameworks import files
from simgpt.frameworks.files import FILE, Described
from simgpt.frameworks.imported_job import AS_SAID, ImportedJob, Instead, spelled
from simgpt.frameworks.importing import job_from, table_of
from simgpt.frameworks.logs import blocks, nanotron, olmo
from simgpt.frameworks.logs.blocks import Block
from simgpt.frameworks.logs.python_repr import value_of
from simgpt.frameworks.reading import FrameworkError, flattened
from simgpt.frameworks.recipes import arguments_of, devices_of
from topologies.files.printable import path_shown
from topologies.files.reading import shipped_toml
from topologies.files.yaml_text import yaml_texts
from validation.jobs.log_text import lines_of
from validation.jobs.logged_sizes import DEVICES, LoggedSizes
from validation.jobs.logged_sizes import MARKS as SIZES
from workload.descriptions.hugging_face import model_from_config

_DOTS = re.compile(r"(?:^|\s\s)(\w+) \.* ?(\S.*)$")
_HEADING = re.compile(r"\[NeMo [A-Z] .*\]\s*$")  # of a message, whose lines follow
_RANKS = re.compile(r"\[rank-\d+/(\d{1,7})\]")  # in Primus's labels
PRIMUS = "primus"  # a stack
_COLON = re.compile(r"\s\s([\w.]+) +: (.*) \(\w+\)$")


class NoArgumentsError(FrameworkError):
    """A log without its job's arguments in a known form."""


@dataclass
class Told:
    """What a log's blocks tell: settings of frameworks, the configuration of nanotron or OLMo, the
    config of a model of Hugging Face, devices, and the stack where it is not that of the
    settings."""

    described: list[Described] = field(default_factory=list)
    nanotron: Mapping[str, Any] | None = None
    olmo: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None
    devices: int | None = None
    stack: str | None = None


def job_of_log(
    path: Path,
    *,
    model: str | None = None,
    devices: int | None = None,
    instead: Instead = AS_SAID,
) -> ImportedJob:
    """The job of a log, from its last complete block of arguments, with the `model` and
    `devices` that the user gives. A FrameworkError says what the log lacks."""
    origin = path_shown(path)
    told = _told(path, origin)
    if told.olmo is not None:
        found = devices or told.devices
        return _whole(olmo.olmo_job(told.olmo, origin, model, found, instead), origin)
    if told.nanotron is not None:
        return _whole(nanotron.nanotron_job(told.nanotron, origin, model, instead), origin)
    if not told.described:
        lacking = "MODEL and --plan" if model is None else "--plan"
        raise NoArgumentsError(
            f"{origin} does not contain its job's arguments in a known form: give {lacking}"
        )
    changed: dict[str, Any] = {}
    if model is None and told.model is not None:
        model, changed = spelled(model_from_config(told.model, origin, name="").gpt)
    instead = replace(instead, stack=instead.stack or told.stack)
    job = job_from(
        told.described,
        devices=devices or told.devices,
        model=model,
        changed=changed,
        instead=instead,
    )
    return _whole(job, origin)


def titles_of(job: ImportedJob) -> str:
    """The names of a job's frameworks, as they call themselves."""
    return " and ".join(map(_title, job.frameworks))


def _title(framework: str) -> str:
    if framework == files.NEMO:
        return blocks.NEMO
    return str(table_of(framework)["title"]) if framework in files.FRAMEWORKS else framework


def _whole(job: ImportedJob, origin: str) -> ImportedJob:
    """The job, if it can be predicted; else a FrameworkError says why not."""
    if not job.question.model:
        name = titles_of(job)
        lacks = f" (it lacks {', '.join(job.missing)})" if job.missing else ""
        raise FrameworkError(
            f"{origin} has arguments of {name} that do not describe a model{lacks}: give MODEL"
        )
    if job.question.devices is None:
        raise FrameworkError(f"{origin} does not say how many devices its job had: give -n")
    if job.refused:
        first = job.refused[0]
        raise FrameworkError(f"{origin}: its job cannot be predicted: {first}: {first.why}")
    return job


def _told(path: Path, origin: str) -> Told:
    sizes = LoggedSizes()

    def beside(line: str) -> None:
        if any(map(line.__contains__, SIZES)):
            sizes.take(line)

    found: dict[str, blocks.Block] = {}
    for block in blocks.blocks_of(lines_of(path, longest=blocks.LONGEST), beside):
        found[block.kind.name] = block
    told = Told(devices=sizes.found().get(DEVICES))
    for name, reader in READERS.items():
        if name in found:
            reader(told, found[name], origin)
    vocabulary = found.get(blocks.VOCABULARY)
    if vocabulary is not None and told.described:
        told.described = [_with_vocabulary(each, vocabulary.text) for each in told.described]
    return told


def _with_vocabulary(described: Described, text: str) -> Described:
    """Settings of Megatron-LM's with the vocabulary that its tokenizer turned out to have."""
    size = re.match(r"\d+", text)
    if described.framework != files.MEGATRON or size is None:
        return described
    return replace(described, settings={**described.settings, "vocab-size": size[0]})


def _read_megatron(told: Told, printed: Block, origin: str) -> None:
    settings = _pairs(_DOTS, printed.text)
    told.described.append(Described(files.MEGATRON, _asked(settings), told.devices))


def _read_primus(told: Told, printed: Block, origin: str) -> None:
    settings = _pairs(_COLON, printed.text)
    if told.devices is None and (ranks := _RANKS.search(printed.rank)):
        told.devices = int(ranks[1])
    if any(name.startswith(("parallelism.", "training.")) for name in settings):
        told.described.append(Described(files.TORCHTITAN, settings, told.devices))
    elif any("." in name for name in settings):
        told.described.append(Described(files.BRIDGE, settings, told.devices))
    else:
        told.stack = PRIMUS
        told.described.append(Described(files.MEGATRON, _asked(settings), told.devices))


def _pairs(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    found = (pattern.search(line) for line in text.splitlines())
    return {each[1]: each[2] for each in found if each is not None}


def _asked(settings: Mapping[str, str]) -> dict[str, str]:
    """Megatron-LM's arguments without those at their default values and those that follow from
    others."""
    table = shipped_toml("simgpt", "frameworks/logs/logs.toml")["megatron"]
    kept = {
        name: value
        for name, value in settings.items()
        if table["defaults"].get(name) != value
        and not any(fnmatchcase(name, pattern) for pattern in table["follows"])
    }
    if settings.get("group_query_attention") == "False":
        kept.pop("num_query_groups", None)
    kept = {name: value.removeprefix("torch.") for name, value in kept.items()}
    arguments, _ = arguments_of(kept)
    return arguments


def _read_titan(told: Told, printed: Block, origin: str) -> None:
    document = _json(printed.text) or value_of(printed.text, origin)
    spec = document.get("model_spec") if isinstance(document, dict) else None
    if isinstance(spec, dict):
        document["model"] = {key: spec.get(key) for key in ("name", "flavor")}
    told.described.append(Described(files.TORCHTITAN, _flat(document), told.devices))


def _read_deepspeed(told: Told, printed: Block, origin: str) -> None:
    told.described.append(
        Described(files.DEEPSPEED, _flat(_json(printed.text) or {}), told.devices)
    )


def _read_yaml(framework: str, told: Told, printed: Block, origin: str) -> None:
    own = "\n".join(line for line in printed.lines if not _HEADING.match(line))
    document = yaml_texts(FILE, dedent(own), origin)
    settings = _flat(document)
    devices = devices_of(settings) if framework == files.NEMO else None
    told.described.append(Described(framework, settings, devices or told.devices))


def _read_nanotron(told: Told, printed: Block, origin: str) -> None:
    config = value_of(printed.text, origin)
    told.nanotron = config if isinstance(config, dict) else None


def _read_olmo(told: Told, printed: Block, origin: str) -> None:
    config = value_of(printed.text, origin)
    told.olmo = config if isinstance(config, dict) else None


def _read_model(told: Told, printed: Block, origin: str) -> None:
    told.model = _json(printed.text)


READERS: Mapping[str, Callable[[Told, Block, str], None]] = {
    blocks.MEGATRON: _read_megatron,
    blocks.PRIMUS: _read_primus,
    blocks.TITAN: _read_titan,
    blocks.DEEPSPEED: _read_deepspeed,
    blocks.NEMO: partial(_read_yaml, files.NEMO),
    blocks.BRIDGE: partial(_read_yaml, files.BRIDGE),
    blocks.NANOTRON: _read_nanotron,
    blocks.OLMO: _read_olmo,
    blocks.MODEL: _read_model,
}


def _json(text: str) -> dict[str, Any] | None:
    """The table of a text in JSON; None where it is none."""
    try:
        document = FILE.parsed(text, "")
    except FrameworkError:
        return None
    return document if isinstance(document, dict) else None


def _flat(document: Any) -> dict[str, Any]:
    return dict(flattened(document)) if isinstance(document, Mapping) else {}
