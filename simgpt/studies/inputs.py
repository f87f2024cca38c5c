"""What a study needs beside its points: its models and machines, read once, sent to all workers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, field
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from simgpt.arguments.model import tell_notes
from simgpt.options import machine_of
from simgpt.studies.study import Study
from simgpt.studies.study_keys import keys_of
from simulator.stacks import EXECUTOR, Stack, load_stack
from simulator.uncertainty.anchors import Anchor
from topologies.machine import Machine, machine_to_dict
from topologies.machine_files import check_setting
from topologies.records import record
from workload.descriptions.read import described_model
from workload.expert_loads.histogram_file import FILE
from workload.gpt import GPT

PACKAGES = ("topologies", "workload", "simulator", "simgpt")  # what a row is made of


@record(slots=False)
class Inputs:
    """Models, machines, stacks and what files of `routing` say, by the names that points give, and
    measured steps that scale predictions; `digests` tells two such sets apart.

    `code` is the digest of the packages that predict: workers whose own differs are refused.
    """

    models: Mapping[str, GPT] = field(compare=False)
    machines: Mapping[str, Machine] = field(compare=False)
    stacks: Mapping[str, Stack] = field(compare=False)
    digests: tuple[tuple[str, str], ...]
    code: str
    routings: Mapping[str, Any] = field(compare=False, default_factory=dict)
    anchors: tuple[Anchor, ...] = ()


def inputs_of(study: Study, anchors: tuple[Anchor, ...] = ()) -> Inputs:
    """The models and machines of a study, after a look at what it sets of the machines, and the
    anchors of its predictions."""
    models = {name: _model(name, study) for name in _names(study, "model")}
    machines = {name: _machine(name, study.folder) for name in _names(study, "machine")}
    _check_settings(study, machines)
    digests = [(f"model {name}", _digest(gpt.flat())) for name, gpt in models.items()]
    digests += [(f"machine {name}", _digest(machine_to_dict(m))) for name, m in machines.items()]
    stacks = {n: _stack(n, study.folder) for n in (EXECUTOR.name, *_given(study, "stack"))}
    digests += [(f"stack {name}", _digest(asdict(each))) for name, each in stacks.items()]
    routings = {name: FILE.document(study.folder / name) for name in _given(study, "routing")}
    digests += [(f"routing {name}", _digest(each)) for name, each in routings.items()]
    digests += [(f"anchor {each.name}", _digest(asdict(each))) for each in anchors]
    return Inputs(models, machines, stacks, tuple(digests), code_digest(), routings, anchors)


@cache
def code_digest() -> str:
    """A digest of all that decides what is predicted: the same digest, the same rows."""
    found = hashlib.sha256()
    for package in PACKAGES:
        root = Path(str(resources.files(package)))
        for path in sorted(root.rglob("*")):
            if not path.is_file() or path.suffix == ".pyc":
                continue
            found.update(path.relative_to(root).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _names(study: Study, key: str) -> list[str]:
    return list(dict.fromkeys(point[key] for point in study.points()))


def _given(study: Study, key: str) -> list[str]:
    """The names of a key that points need not have."""
    return list(dict.fromkeys(point[key] for point in study.points() if key in point))


def _stack(name: str, folder: Path) -> Stack:
    return load_stack(str(folder / name) if name.endswith(".toml") else name)


def _model(name: str, study: Study) -> GPT:
    """A model by name, by its fields, or from a file that lies beside the study."""
    is_file = name.endswith((".toml", ".json"))
    described = described_model(str(study.folder / name) if is_file else name)
    given = {field for point in study.points() for field in keys_of(point, "model")}
    tell_notes(described, described.gpt, given)
    return described.gpt


def _machine(name: str, folder: Path) -> Machine:
    """A machine by name, or from a file that lies beside the study."""
    is_file = name.partition(":")[0].endswith((".toml", ".json"))
    return machine_of(str(folder / name) if is_file else name)


def _check_settings(study: Study, machines: Mapping[str, Machine]) -> None:
    fixed = [
        (key, (given,)) for point in (study.base, *study.listed) for key, given in point.items()
    ]
    for key, values in (*fixed, *study.swept):
        if key.startswith("machine."):
            for machine, given in product(machines.values(), values):
                check_setting(machine, key.removeprefix("machine."), given)


def _digest(record: Any) -> str:
    text = json.dumps(record, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
