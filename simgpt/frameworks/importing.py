"""From files of other frameworks to a job that simgpt predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from simgpt.frameworks import axonn, deepspeed, megatron, megatron_deepspeed, torchtitan
from simgpt.frameworks.files import (
    AXONN,
    BRIDGE,
    DEEPSPEED,
    FRAMEWORKS,
    MEGATRON,
    NEMO,
    TORCHTITAN,
    Described,
    read_files,
)
from simgpt.frameworks.identity.sizes import check_sizes
from simgpt.frameworks.imported_job import (
    AS_SAID,
    ImportedJob,
    Instead,
    checked,
    in_place,
    job_of_fields,
)
from simgpt.frameworks.reading import FrameworkError, NotSaidError, Reading
from simgpt.frameworks.recipe_file import read_recipe
from simgpt.frameworks.recipes import arguments_of, leave_to_recipe, release_of
from simgpt.frameworks.rendering import exported_from
from simgpt.frameworks.titan_recipe import is_titan, read_titan
from topologies.files.printable import path_shown
from topologies.files.reading import shipped_toml
from workload.descriptions.read import described_model

Reader = Callable[[Reading, int | None], None]
READERS: Mapping[str, Reader] = {
    MEGATRON: megatron.read,
    TORCHTITAN: torchtitan.read,
    DEEPSPEED: deepspeed.read,
    AXONN: axonn.read,
}
NOT_DATA = ("tp", "pp", "cp")  # axes over which DeepSpeed counts no batch
OF_RECIPES = (
    "title",
    "stack",
    "elsewhere",
    "fp8_recipe",
    "fsdp_shards",
    "fsdp_sums",
    "sends_once",
    "with_fusions",
    "fused_unless_said",
)
RECIPES = (BRIDGE, NEMO)  # Megatron-LM's arguments under names of their own


def imported(
    paths: Sequence[Path],
    framework: str | None = None,
    *,
    devices: int | None = None,
    model: str | None = None,
    changed: Mapping[str, Any] | None = None,
    defined: Mapping[str, str] | None = None,
    room: tuple[int, int] | None = None,
    instead: Instead = AS_SAID,
    recipe: str | None = None,
) -> ImportedJob:
    """The job that files of a framework describe; without `framework` each file is known by what it
    says, and with `recipe` the path is a checkout that has a recipe of that name. `model` is a
    MODEL for files that say nothing of one, `changed` are fields of it, `defined` variables of a
    script's surroundings, `room` the nodes of the user's machine and the devices of each, taken
    where a launcher does not say on how many nodes it starts; `instead` is taken in place of what
    files say."""
    if recipe is not None:
        described, preset, otherwise = _of_checkout(paths, framework, recipe, devices)
        changed = changed or {} if model else {**otherwise, **(changed or {})}
        model = model or preset
    else:
        described = read_files(paths, framework, defined or {})
        instead = replace(instead, exported_from=exported_from(paths))
    try:
        job = job_from(
            described,
            devices=devices,
            model=model,
            changed=changed or {},
            room=room,
            instead=instead,
        )
    except NotSaidError as error:
        lines = [line for each in described for line in each.left_out]
        sourced = [line for line in lines if line.name.startswith("source ")]
        if not sourced:
            raise
        raise FrameworkError(f"{error}; {sourced[0].name}: {sourced[0].why}") from None
    origin = " and ".join(map(path_shown, paths))
    names = [name for each in described for name in each.settings]
    check_sizes(origin, job, names, given=instead.batch is not None)
    return job


def _of_checkout(
    paths: Sequence[Path], framework: str | None, recipe: str, devices: int | None
) -> tuple[list[Described], str | None, dict[str, Any]]:
    """What a recipe of a checkout says, the preset that it builds on, and what of it is another."""
    of_titan = is_titan(paths[0])
    if len(paths) > 1 or framework not in (None, *((TORCHTITAN,) if of_titan else RECIPES)):
        raise FrameworkError("--recipe is of one checkout of Megatron-Bridge, NeMo or torchtitan")
    if of_titan:
        return [read_titan(paths[0], recipe)], None, {}
    described, preset, otherwise = read_recipe(paths[0], recipe, devices)
    return [described], preset, otherwise


def job_from(
    described: Sequence[Described],
    *,
    devices: int | None = None,
    model: str | None = None,
    changed: Mapping[str, Any],
    room: tuple[int, int] | None = None,
    instead: Instead = AS_SAID,
) -> ImportedJob:
    """The job of what files say, later ones before earlier ones; DeepSpeed's JSON beside a
    script of Megatron-LM's says what it says of Megatron-DeepSpeed."""
    telling = [each for each in described if not each.only_sets_variables]
    frameworks = tuple(dict.fromkeys(each.framework for each in telling))
    if len(frameworks) > 1 and set(frameworks) != {MEGATRON, DEEPSPEED}:
        raise FrameworkError(f"files of {' and '.join(frameworks)} do not describe one job")
    devices, counted = _devices(described, devices, room)
    order = sorted(frameworks, key=lambda name: name == DEEPSPEED)
    given = described_model(model).gpt.flat() if model else {}
    merged = {name: _merged(described, name) for name in order}
    readings, fields = _read(merged, devices, {**given, **changed}, instead.taken_stack)
    if len(frameworks) > 1 and "shard" not in readings[-1].fields:
        fields.pop("shard", None)
    lines = [line for each in described for line in each.left_out]
    job = job_of_fields(
        fields,
        frameworks=frameworks,
        stack=megatron_deepspeed.STACK if len(frameworks) > 1 else readings[0].stack,
        devices=devices or fields.get("devices"),
        model=model or fields.get("model"),
        changed=changed,
        remarks=(
            (*(each for reading in readings for each in reading.changes), *lines),
            tuple(each for reading in readings for each in reading.refused),
            tuple(each for reading in readings for each in reading.without_effect),
        ),
        settings=sum(len(each.settings) for each in described),
    )
    unknown = tuple(name for reading in readings for name in reading.unknown)
    words = readings[0].stack_words if len(frameworks) == 1 else ""
    asked = replace(job, devices_words=counted, stack_words=words, unknown=unknown)
    return checked(in_place(asked, instead))


def _read(
    merged: Mapping[str, Mapping[str, Any]],
    devices: int | None,
    model: Mapping[str, Any],
    stack: str | None,
) -> tuple[list[Reading], dict[str, Any]]:
    """The readings of each framework's settings, and the fields of all; what DeepSpeed's JSON says
    of devices it says of the data-parallel ranks of a script beside it."""
    readings: list[Reading] = []
    fields: dict[str, Any] = {}
    for name, settings in merged.items():
        split = max(prod(fields.get(axis, 1) for axis in NOT_DATA), 1) if name == DEEPSPEED else 1
        ranks = max(devices // split, 1) if devices else None
        reading = reading_of(name, settings, ranks, model, stack, has_deepspeed=DEEPSPEED in merged)
        fields |= reading.fields
        if "devices" in reading.fields:
            fields["devices"] *= split
        readings.append(reading)
    if len(readings) > 1:
        bf16 = deepspeed.is_bf16(readings[1])
        fields["zero"] = megatron_deepspeed.stage_that_runs(readings[0], fields["zero"], bf16=bf16)
    return readings, fields


def _devices(
    described: Sequence[Described], given: int | None, room: tuple[int, int] | None
) -> tuple[int | None, str]:
    """The number of devices, and where it comes from in words where that is not plain."""
    telling = [each for each in described if each.devices is not None]
    if not telling:
        return given, ""
    last = telling[-1]
    said, per_node = last.devices or 0, last.per_node
    if given is not None:
        words = f"-n, in place of the {said:,} that the files say" if given != said else ""
        return given, words
    if per_node and room is not None and room[0] > 1 and said <= room[1]:
        nodes = room[0]
        return said * nodes, f"{per_node}: taking all {nodes:,} nodes of -m (or give -n)"
    if per_node:
        return said, f"{per_node}: taking one node (or give -n)"
    return said, ""


def reading_of(
    framework: str,
    settings: Mapping[str, Any],
    devices: int | None,
    model: Mapping[str, Any],
    stack: str | None = None,
    *,
    has_deepspeed: bool = False,
) -> Reading:
    """A framework's settings, read and sorted, for a `model` with these fields of the user's, and
    for the `stack` that is taken in place of the framework's; with `has_deepspeed` the stage of
    ZeRO and such are told elsewhere."""
    table, words = table_of(framework), ""
    older = table.get("older", {})
    prefix = table.get("prefix", "")
    names = {older[name]: f"{prefix}{name}" for name in settings if name in older}
    settings = {older.get(name, name): value for name, value in settings.items()}
    if framework in RECIPES:
        own, words = release_of(framework, settings)
        table = {**table, "stack": own}
        settings, names = arguments_of(settings)
        if framework == BRIDGE:
            leave_to_recipe(settings, names)
        framework = MEGATRON
    reading = Reading(table, settings, names, model, stack, has_deepspeed=has_deepspeed)
    reading.stack_words = words
    reading.leave_switched_off()
    READERS[framework](reading, devices)
    reading.sort_rest()
    return reading


def _merged(described: Sequence[Described], framework: str) -> dict[str, Any]:
    """The settings of all files of a framework."""
    own = [each.settings for each in described if each.framework == framework]
    return {name: value for settings in own for name, value in settings.items()}


def table_of(framework: str) -> Mapping[str, Any]:
    """A framework's table of names; recipes have Megatron-LM's, with some entries of their own."""
    return _tables()[framework]


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    """The tables of all frameworks, as they are shipped."""
    plain = [each for each in FRAMEWORKS if each not in RECIPES]
    tables = {each: shipped_toml("simgpt", f"frameworks/{each}.toml") for each in plain}
    own = shipped_toml("simgpt", "frameworks/recipes.toml")
    of_recipes = {**tables[MEGATRON], **{key: own[key] for key in OF_RECIPES}}
    return {**tables, **dict.fromkeys(RECIPES, of_recipes)}
