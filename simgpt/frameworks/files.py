"""Files of other frameworks: which framework's a file is, and its settings by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from simgpt.frameworks.identity.known import arguments_known, framework_of
from simgpt.frameworks.identity.names import of_document, of_python, of_script
from simgpt.frameworks.identity.rows import rows
from simgpt.frameworks.overrides import (
    FILE_NAMES,
    has_dotted_flags,
    merged,
    of_flags,
    overridden,
)
from simgpt.frameworks.reading import FrameworkError, Remark, flattened
from simgpt.frameworks.recipes import devices_of
from simgpt.frameworks.scripts.interpolation import resolved, with_variables
from simgpt.frameworks.scripts.interpreter import NOT_BASH
from simgpt.frameworks.scripts.job_script import devices_of_job, job_variables
from simgpt.frameworks.scripts.shell import Launch, read_script
from simgpt.frameworks.scripts.variables import Value
from topologies.files.printable import path_shown, shown
from topologies.files.reading import UserFile
from topologies.records import record
from workload.descriptions.hugging_face import is_config

FILE = UserFile("framework's file", FrameworkError, constants=True)
MEGATRON, BRIDGE, NEMO = "megatron", "megatron-bridge", "nemo"
TORCHTITAN, DEEPSPEED, AXONN = "torchtitan", "deepspeed", "axonn"
FRAMEWORKS = (MEGATRON, TORCHTITAN, DEEPSPEED, BRIDGE, NEMO, AXONN)
CHANGED = (NEMO, BRIDGE, TORCHTITAN)  # whose files a command line changes
ARGUMENTS, ENVIRONMENT = "MODEL_ARGS", "ENV_VARS"
YAML = (".yaml", ".yml")
LAUNCHERS = (("torchrun", "--nnodes"), ("DeepSpeed's launcher", "--num_nodes"))
UNREAD = "the file is not read; where arguments depend on its variables"
_LOGS = re.compile(r"\.log(\.gz)?$")
_LOGGED = re.compile(
    r"\biteration +\d+/ *\d+ \||\bstep: *\d+ +\S*loss: *\d|^-{9,} arguments -{9,}$", re.M
)


@record
class Described:
    """What one file says: the framework, its settings, and the devices that its launcher starts
    (None: it does not say); `left_out` are lines of a script that could not be followed. A script
    that only sets `variables` has no settings. `per_node` says in words that the devices are those
    of each node, the number of nodes not being said. A `document` is a table whose settings follow
    from it when all files are read, `base` says which file's it changes."""

    framework: str
    settings: Mapping[str, Any]
    devices: int | None = None
    left_out: tuple[Remark, ...] = field(default=())
    variables: Mapping[str, Value] | None = None
    per_node: str = ""
    document: Mapping[str, Any] | None = None
    base: str = ""

    @property
    def only_sets_variables(self) -> bool:
        """Whether this is a script for others to build on."""
        return self.variables is not None and not self.settings and self.document is None


def read_files(
    paths: Sequence[Path], framework: str | None, defined: Mapping[str, str]
) -> list[Described]:
    """What files say, each script with the variables that those before it set."""
    found: list[Described] = []
    variables: dict[str, Value] = {}
    for path in paths:
        each = read_file(path, framework, defined, variables)
        variables |= each.variables or {}
        named = {f"source {other.name}" for other in paths}
        kept = tuple(line for line in each.left_out if _without_folder(line.name) not in named)
        found.append(replace(each, left_out=kept))
    found = [_settled(each, found, {**variables, **defined}) for each in found]
    if all(each.only_sets_variables for each in found):
        lines = [line for each in found for line in each.left_out if line.why == NOT_BASH]
        beside = f"; {shown(lines[0].name)}: {NOT_BASH}" if lines else ""
        raise FrameworkError(
            f"{path_shown(paths[-1])} gives no program arguments such as --num-layers 24; add the "
            f"script that does: simgpt import {path_shown(paths[-1])} SCRIPT{beside}"
        )
    return found


def read_file(
    path: Path,
    framework: str | None,
    defined: Mapping[str, str],
    before: Mapping[str, Value] | None = None,
) -> Described:
    """A file in the words of `framework`, or of the one that it is found to be of.

    `defined` are variables that a script's surroundings set, `before` those of earlier scripts.
    """
    origin = path_shown(path)
    if path.suffix in (*YAML, ".toml", ".json"):
        document = _document(path, origin)
        found = _framework_of(document, origin, framework)
        if found != MEGATRON:
            return Described(found, {}, document=document)
        variables = {**(before or {}), **defined}
        own = {name: each for name, each in _arguments_of(document).items() if name.isupper()}
        return Described(found, _arguments_of(with_variables(document, own, variables)))
    if framework not in (None, MEGATRON, *CHANGED):
        raise FrameworkError(f"{origin} is read as a script of Megatron-LM's, not of {framework}'s")
    if _LOGS.search(path.name):
        raise _is_log(origin)
    text = FILE.text(path)
    if _LOGGED.search(text):
        raise _is_log(origin)
    if path.suffix == ".py":
        framework_of(of_python(text), origin, None, ())
        raise FrameworkError(f"{origin} is a program in Python, which is not read")
    allotted = job_variables(text)
    launch = read_script(text, allotted | dict(defined), before, _known)
    devices, per_node = _devices(arguments(launch.launcher))
    if devices is None or per_node:
        of_job = devices_of_job(allotted)
        devices, per_node = (of_job, "") if of_job else (devices, per_node)
    lines = [Remark(line, "", why) for line, why in launch.left_out.items()]
    lines += [
        Remark(f"source {file}", "", f"{UNREAD}: simgpt import {file} {origin}")
        for file in launch.sourced
    ]
    settings = arguments(launch.arguments)
    found = _framework_of_script(launch, text, origin, framework)
    described = Described(found, settings, devices, tuple(lines), launch.variables, per_node)
    if found == MEGATRON:
        return described
    changes = of_flags(settings) if found == TORCHTITAN else overridden(launch.arguments)
    names = [str(settings[name]).split()[0] for name in FILE_NAMES if name in settings]
    title = next(row["name"] for row in rows() if row.get("reads") == found)
    base = f"{origin} changes settings of {title}'s {shown(names[0])}" if names else ""
    return replace(described, settings={}, document=changes, base=base)


def _known(words: Sequence[str]) -> int:
    """The number of a command's words that are settings of a known framework."""
    return arguments_known(words) + len(list(flattened(overridden(words))))


def _settled(
    described: Described,
    every: Sequence[Described],
    variables: Mapping[str, Value],
) -> Described:
    """A file with the settings of its table. The tables of one framework are merged, command lines
    last; references are resolved in the merged table."""
    same = [each for each in every if each.framework == described.framework and each.document]
    if described.document is None:
        return described
    if described is not same[0]:
        return replace(described, document={})
    files = [each for each in same if each.variables is None]
    scripts = [each for each in same if each.variables is not None]
    if scripts and scripts[-1].base and not files:
        raise FrameworkError(f"{scripts[-1].base}, which is missing: give that file too")
    table: dict[str, Any] = {}
    for each in [*files, *scripts]:
        table = merged(table, each.document or {})
    settings = dict(flattened(resolved(table, variables)))
    devices = devices_of(settings) if described.framework == NEMO else None
    return replace(described, settings=settings, devices=devices or described.devices)


def _without_folder(line: str) -> str:
    """A line that takes a file in, with the file's name alone."""
    return re.sub(r"^source .*/", "source ", line)


def _is_log(origin: str) -> FrameworkError:
    return FrameworkError(
        f"{origin} is a job's log, which asks nothing: simgpt compare {origin} MODEL … puts it "
        "beside a prediction"
    )


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """Settings of `--name value …` words, by name; one without a value is switched on.

    >>> arguments(["--bf16", "--num_layers=2", "--betas", "1", "2"])
    {'bf16': True, 'num-layers': '2', 'betas': '1 2'}

    A variable after a value, which the script does not set, stands for itself.
    """
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
            found[name.replace("_", "-")] = values
        elif values and word.startswith("$"):
            found[word] = []
        else:
            values.append(word)
    return {name: " ".join(each) if each else True for name, each in found.items() if name}


def _document(path: Path, origin: str) -> dict[str, Any]:
    if path.suffix in YAML:
        from topologies.files.yaml_text import yaml_texts

        document = yaml_texts(FILE, FILE.text(path), origin)
    else:
        document = FILE.document(path)
    if not isinstance(document, dict):
        raise FrameworkError(f"{origin} should be a table of settings")
    inner = document.get("ConfigContainer")
    return dict(inner) if isinstance(inner, Mapping) else document


def _framework_of(document: Mapping[str, Any], origin: str, told: str | None) -> str:
    """The framework whose a table is; `told` is what the user says."""
    found = framework_of(of_document(document), origin, told, FRAMEWORKS)
    if found:
        return found
    if is_config(document):
        raise FrameworkError(
            f"{origin} is a model of Hugging Face, which is a MODEL as it is: simgpt predict "
            f"{origin} -m MACHINE -n DEVICES"
        )
    known = ", ".join(FRAMEWORKS)
    raise FrameworkError(f"{origin} is of no framework that is known; give --from: {known}")


def _framework_of_script(launch: Launch, text: str, origin: str, told: str | None) -> str:
    """The framework whose program a script starts. One that only sets variables starts none; where
    no argument is known, all lines are looked at."""
    words = launch.arguments
    commands = [*launch.commands, words]
    names = of_script(commands)
    if not _known(words) and not has_dotted_flags(words):
        lines = [line.split() for line in text.splitlines() if not line.lstrip().startswith("#")]
        names = of_script([*commands, *lines])
    changes = overridden(words) or has_dotted_flags(words)
    found = framework_of(names, origin, told, (MEGATRON, *CHANGED) if changes else (MEGATRON,))
    if not found and words:
        started = shown(names.programs[0]) if names.programs else "a program"
        raise FrameworkError(
            f"{origin} starts {started}, and none of its arguments is one of Megatron-LM's, such "
            "as --num-layers or --micro-batch-size"
        )
    return found or MEGATRON


def _arguments_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a table of Megatron-LM's, and the variables of its surroundings."""
    own = document.get(ARGUMENTS, document)
    surroundings = document.get(ENVIRONMENT) or {}
    if not isinstance(own, Mapping) or not isinstance(surroundings, Mapping):
        raise FrameworkError(f"{ARGUMENTS} and {ENVIRONMENT} should be tables")
    named = {str(key).removeprefix("--").replace("_", "-"): own[key] for key in own}
    named = {key: value for key, value in named.items() if not isinstance(value, Mapping)}
    return named | {str(key): value for key, value in surroundings.items()}


def _devices(launcher: Mapping[str, Any]) -> tuple[int | None, str]:
    """Devices that torchrun, or DeepSpeed's launcher, starts; where it does not say on how many
    nodes, those of each, and words for that."""
    within = launcher.get("nproc-per-node", launcher.get("num-gpus", ""))
    nodes = launcher.get("nnodes", launcher.get("num-nodes", "1"))
    sizes = [str(each).split(" ")[0] for each in (within, nodes)]
    if not all(size.isdecimal() and 0 < len(size) < 8 for size in sizes):
        return None, ""
    devices = int(sizes[0]) * int(sizes[1])
    if {"nnodes", "num-nodes"} & launcher.keys():
        return devices, ""
    program, lacking = LAUNCHERS["nproc-per-node" not in launcher]
    return devices, f"{program} starts {devices} per node and {lacking} is missing"
