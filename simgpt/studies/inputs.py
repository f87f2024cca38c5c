"""What a study needs beside its points: its models and machines, read once, sent to all workers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, field
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from simgpt import options
from simgpt.question import keys_of
from simgpt.question_rows import NAMED
from simgpt.step import plan_table
from simgpt.studies.study import Study
from simulator.stacks import EXECUTOR, Stack, load_stack
from simulator.uncertainty.anchors import Anchor
from topologies.files.named_files import is_plan_file, located, located_plan
from topologies.machine import Machine, machine_to_dict
from topologies.machine_files import check_setting, load_machine
from topologies.records import record
from workload.descriptions.read import described_model
from workload.expert_loads.histogram_file import FILE
from workload.gpt import GPT

PACKAGES = ("topologies", "workload", "simulator", "simgpt")  # what a row is made of


@record(slots=False)
class Inputs:
    """Models, machines, stacks and what files of plans and of `routing` say, by the names that
    questions have, and measured steps that scale predictions; `digests` tells two such sets apart.

    `code` is the digest of the packages that predict: workers whose own differs are refused.
    """

    models: Mapping[str, GPT] = field(compare=False)
    machines: Mapping[str, Machine] = field(compare=False)
    stacks: Mapping[str, Stack] = field(compare=False)
    digests: tuple[tuple[str, str], ...]
    code: str
    routings: Mapping[str, Any] = field(compare=False, default_factory=dict)
    plans: Mapping[str, Any] = field(compare=False, default_factory=dict)
    anchors: tuple[Anchor, ...] = ()
    folder: Path = field(compare=False, default=Path())


def inputs_of(study: Study, anchors: tuple[Anchor, ...] = ()) -> Inputs:
    """The models and machines of a study, after a look at what it sets of the machines, and the
    anchors of its predictions."""
    given = {field for point in study.points() for field in keys_of(point, "model")}
    names = _names(study)
    models = {each: _model(each, given) for each in names["model"].values()}
    machines = {each: load_machine(each) for each in names["machine"].values()}
    _check_settings(study, {name: machines[each] for name, each in names["machine"].items()})
    stacks = {each: load_stack(each) for each in (EXECUTOR.name, *names["stack"].values())}
    routings = {each: FILE.document(Path(each)) for each in names["routing"].values()}
    plans = _plans(study)
    digests = [(f"model {n}", _digest(models[e].flat())) for n, e in names["model"].items()]
    digests += [
        (f"machine {n}", _digest(machine_to_dict(machines[e]))) for n, e in names["machine"].items()
    ]
    of_files = {each: name for name, each in names["stack"].items()}
    digests += [(f"stack {of_files.get(e, e)}", _digest(asdict(s))) for e, s in stacks.items()]
    digests += [(f"routing {n}", _digest(routings[e])) for n, e in names["routing"].items()]
    digests += [(f"plan {n}", _digest(table)) for n, (_, table) in plans.items()]
    digests += [(f"anchor {each.name}", _digest(asdict(each))) for each in anchors]
    return Inputs(
        models,
        machines,
        stacks,
        tuple(digests),
        code_digest(),
        routings,
        dict(plans.values()),
        anchors,
        study.folder,
    )


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


def _names(study: Study) -> dict[str, dict[str, str]]:
    """For each field that may name a file the names that points give, and those of questions."""
    named = {key: dict.fromkeys(p[key] for p in study.points() if key in p) for key in NAMED}
    return {
        key: {name: located(name, study.folder) for name in names} for key, names in named.items()
    }


def _plans(study: Study) -> dict[str, tuple[str, Any]]:
    """For each plan's file that points name its name in their questions, and what it says."""
    given = dict.fromkeys(str(point["plan"]) for point in study.points() if "plan" in point)
    paths = {name: located_plan(name, study.folder) for name in given if is_plan_file(name)}
    return {name: (path, plan_table(path)) for name, path in paths.items()}


def _model(name: str, given: Collection[str]) -> GPT:
    """A model by name, by its fields, or from a file, of which points give some fields."""
    described = described_model(name)
    for text in described.notes_on(described.gpt, given):
        options.note(text)
    return described.gpt


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
