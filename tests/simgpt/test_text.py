"""What people read, compared whole: helps, tables, a prediction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from simgpt import tables
from simgpt.cli import COMMANDS, cli
from simgpt.commands.machines import _shortened
from simgpt.commands.validate import _rows
from tests.messages import assert_names
from tests.simgpt.face import assert_golden, simgpt
from topologies.machine_files import load_machine
from topologies.shipped import machine_names
from validation.host_validation import HostRow
from workload.plan_text import parse_plan

BENCH = (
    *("bench-network", "-m", "dgx-h100", "--collective", "all_reduce"),
    *("--sizes", "1MiB:4MiB", "--devices", "8:32"),
)
PREDICT = (
    *("predict", "gpt-5b", "-m", "frontier", "-n", "512", "--batch", "512"),
    *("--plan", "tp=2,z=4,dp=rest,mbs=2,recompute=full", "--stack", "simgpt"),
)


def test_the_help_reads_as_its_golden_file() -> None:
    said = simgpt("--help")
    assert said.status == 0
    assert_golden("help-simgpt.txt", said.out)


def described(
    command: click.Command, *path: str
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and those under it, each with its words."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if under := command.get_command(context, name):
                yield from described(under, *path, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_lists_its_options_and_has_two_examples(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for path, each in described(command, name):
        said = simgpt(*path, "--help")
        assert said.status == 0
        options = [param for param in each.params if isinstance(param, click.Option)]
        assert_names(said.out, *(max(option.opts, key=len) for option in options))
        assert said.out.count("\n  simgpt ") + said.out.count("\n  torchrun ") >= 2, path


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("predict.txt", PREDICT),
        ("predict-tokens.txt", (*PREDICT, "--tokens", "300B")),
        ("predict-sweep.txt", (*PREDICT, "--sweep", "z=2,4", "--sweep", "device.launch=1 us,9 us")),
        ("models.txt", ("models",)),
        ("model.txt", ("models", "gpt-80b")),
        ("machines.txt", ("machines",)),
        ("bench-network.txt", BENCH),
    ],
)
def test_a_command_reads_as_its_golden_file(name: str, command: tuple[str, ...]) -> None:
    said = simgpt(*command)
    assert (said.status, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= tables.WIDTH
    assert_golden(name, said.out)


SPLITS = """
title = "Which split of gpt-5b on 512 GCDs?"
model = "gpt-5b"
machine = "frontier"
devices = 512
batch = 512
plan = "dp=rest,recompute=full"
[sweep]
zero = [0, 1]
plan.z = [1, 4, 16]
plan.x = [1, 2, 3]
"""
LADDER = """
machine = "frontier"
batch = 8192
[scaling]
kind = "weak"
plan = "z=64,dp=rest,recompute=full"
ladder = [["gpt-40b", 4096, 8192], ["gpt-80b", 8192, 8192], ["gpt-80b", 12288, 8192]]
"""


@pytest.mark.parametrize(
    ("name", "study", "words"),
    [
        ("sweep.txt", SPLITS, ("--limit", "5")),
        pytest.param(
            "sweep-energy.txt",
            SPLITS + "[set]\ntokens = '300B'\n",
            ("--sort", "energy"),
            marks=pytest.mark.slow,
        ),
        ("sweep-scaling.txt", LADDER, ()),
    ],
)
def test_a_sweep_reads_as_its_golden_file(
    name: str, study: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(study, encoding="utf-8")
    said = simgpt("sweep", "study.toml", *words)
    assert (said.status, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= tables.WIDTH
    assert_golden(name, said.out)
    again = simgpt("sweep", "study.toml", *words)
    assert (again.out, again.status) == (said.out, 0)


@pytest.mark.parametrize("name", ["network", "groups"])
def test_a_validation_against_published_tables_reads_as_its_golden_file(name: str) -> None:
    said = simgpt("validate", name)
    assert (said.status, said.err) == (0, "")
    assert_golden(f"validate-{name}.txt", said.out)


def test_a_machine_is_shown_with_each_source_once() -> None:
    said = simgpt("machines", "frontier")
    facts = json.loads(simgpt("machines", "frontier", "--json").out)["facts"]
    assert all(fact["key"] in said.out for fact in facts)
    sources = said.out.split("\nsources\n")[1]
    assert sources.count("\n[") + 1 == len({fact["source"] for fact in facts})
    assert max(map(len, said.out.splitlines())) <= tables.WIDTH


def test_a_table_stands_for_its_keys_where_all_of_them_are_named() -> None:
    machine = load_machine("perlmutter")
    wholes = ("software.", "device.matmul.")
    named = [fact.key for fact in machine.entries if fact.key.startswith(wholes)]
    assert len(named) > 10
    assert sorted(_shortened(machine, [*named, "device.memory"])) == [
        "device.matmul",
        "device.memory",
        "software",
    ]


def test_the_rows_of_the_host_validation_read_as_their_golden_file() -> None:
    plan = parse_plan("z=2,recompute=full,overlap=none,precision=fp32", batch=8)
    half, most = 2**29, 2**30
    rows = [
        HostRow("tiny-10m", plan, 0.1, 0.125, half, half + 2**22),
        HostRow("tiny-25m", plan, 1.1, 1.0, most, most + 2**24),
    ]
    assert_golden("host.txt", _rows(rows, 0.15) + "\n")


def _keys(value: Any) -> Any:
    """The keys of a JSON object, without what depends on numbers."""
    if isinstance(value, dict):
        return {key: _keys(item) for key, item in value.items()}
    return [_keys(value[0])] if isinstance(value, list) and value else type(value).__name__


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("predict.json", PREDICT),
        ("predict-sweep.json", (*PREDICT, "--sweep", "zero=1,0", "--tokens", "1T")),
        ("models.json", ("models",)),
        ("model.json", ("models", "tiny-2m")),
        ("machines.json", ("machines",)),
        ("machine.json", ("machines", "alps")),
    ],
)
def test_json_is_one_object_with_the_same_keys(name: str, command: tuple[str, ...]) -> None:
    said = simgpt(*command, "--json")
    assert (said.status, said.err) == (0, "")
    assert_golden(name, json.dumps(_keys(json.loads(said.out)), indent=2) + "\n")


def test_texts_stand_at_the_left_numbers_at_the_right_and_wide_letters_count_twice() -> None:
    rows = [("日本", "1.0 s", "2 %"), ("gpt", "12 s", "100 %")]
    assert tables.table(["model", "step", "share"], rows, first=6).splitlines() == [
        "model     step   share",
        "──────────────────────",
        "日本     1.0 s     2 %",
        "gpt       12 s   100 %",
    ]


def test_wide_text_goes_on_after_a_comma_and_keys_stay_whole() -> None:
    plan = ",".join(f"some_key_{n}=value" for n in range(9))
    shown = tables.table(["plan", "step"], [(plan, "1 s")])
    lines = [line.removesuffix("1 s").strip() for line in shown.splitlines()[2:]]
    assert "".join(lines) == plan
    assert all(line.endswith(",") for line in lines[:-1])
    assert max(map(len, shown.splitlines())) <= tables.WIDTH


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.00 us"),
        (1.5e-6, "1.50 us"),
        (0.0009996, "1.00 ms"),
        (0.1, "100 ms"),
        (12.345, "12.3 s"),
        (86400, "86,400 s"),
    ],
)
def test_durations_show_three_digits(value: float, shown: str) -> None:
    assert tables.seconds(value) == shown


def test_a_cluster_of_any_size_is_asked_for_as_many_devices_as_are_wanted() -> None:
    plan = ("--plan", "tp=8,dp=rest,recompute=full,zero=1", "--batch", "3072")
    said = simgpt("predict", "gpt-20b", "-m", "dgx-a100", "-n", "3072", *plan, "--json")
    assert (said.status, json.loads(said.out)["devices"]) == (0, 3072)
    refused = simgpt("predict", "gpt-20b", "-m", "alps", "-n", "12288", *plan)
    assert (refused.status, refused.out) == (3, "")
    assert_names(refused.err, "12288", "alps", "10752")
    listed = simgpt("machines").out.splitlines()
    names = [line.split()[0] for line in listed if "any number  " in line]
    assert names == ["dgx-a100", "dgx-b200", "dgx-h100", "dgx-h200", "gb200-nvl72"]
    told = [m.name for m in map(load_machine, machine_names()) if "any number" in m.description]
    assert told == names
