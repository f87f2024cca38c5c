"""Machine files: what they hold, and what is refused."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, override

import topologies
from tests.examples import one_in
from tests.messages import assert_names, names
from topologies.errors import MachineError, SimgptError, UnitError
from topologies.files.facts import put
from topologies.files.keys import fields_of
from topologies.files.schema import checked
from topologies.hardware.interconnect import KINDS, Interconnect
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.machine import Machine, _machine, known_keys, machine_to_dict
from topologies.machine_files import load_machine, rate_words, with_settings
from topologies.session import Session
from topologies.shipped import machine_names, variant_names

FRONTIER = Path(topologies.__file__).parent / "machines" / "frontier.toml"


def changed_frontier(tmp_path: Path, old: str, new: str) -> Path:
    """Frontier's file with one piece of text replaced."""
    text = FRONTIER.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["frontier", "perlmutter:cray-mpich", "64x8xH100,8xNDR"])
def test_a_session_builds_a_machine_of_a_name_or_of_parts_once(name: str) -> None:
    with Session():
        first = load_machine(name)
        assert load_machine(name) is first
    with Session():
        assert load_machine(name) is not first


def test_a_file_that_changes_within_a_session_is_read_again(tmp_path: Path) -> None:
    with Session():
        for gib in (32, 48):
            path = changed_frontier(tmp_path, '"64 GiB"', f'"{gib} GiB"')
            assert load_machine(str(path)).device.memory_bytes == gib * 2**30


def test_a_session_builds_a_machine_once_for_each_text_of_its_file(tmp_path: Path) -> None:
    path = changed_frontier(tmp_path, '"64 GiB"', '"32 GiB"')
    with Session():
        first = load_machine(str(path))
        assert load_machine(str(path)) is first
        path.write_bytes(path.read_bytes().replace(b"32 GiB", b"48 GiB"))
        assert load_machine(str(path)) is not first


def refusal(path: Path | str, error: type[SimgptError] = MachineError) -> str:
    with pytest.raises(error) as caught:
        load_machine(str(path))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "nodes", "devices", "bf16"),
    [
        ("frontier", 9856, 78848, 191.5e12),
        ("perlmutter", 1536, 6144, 312e12),
        ("alps", 2688, 10752, 989e12),
    ],
)
def test_shipped_machines_have_their_known_size_and_peak(
    name: str, nodes: int, devices: int, bf16: float
) -> None:
    machine = load_machine(name)
    assert (machine.nodes, machine.devices) == (nodes, devices)
    assert machine.device.peak_flops_per_s["bf16"] == bf16


@pytest.mark.parametrize("name", machine_names())
def test_every_shipped_number_has_a_source_and_a_confidence(name: str) -> None:
    facts = load_machine(name).facts()
    assert len(facts) > 40
    assert [fact.key for fact in facts if len(fact.source) < 5 or not fact.confidence] == []


@pytest.mark.parametrize("name", machine_names())
def test_every_value_of_a_shipped_file_is_a_fact(name: str) -> None:
    document = tomllib.loads((FRONTIER.parent / f"{name}.toml").read_text(encoding="utf-8"))
    machine = load_machine(name)
    fact = next(fact for fact in machine.facts() if fact.key == "nodes")
    entry = document["nodes"]
    assert fact.value == machine.nodes == entry["value"]
    short, _, rest = entry["source"].partition(":")
    assert fact.source == f"{document['sources'][short]}:{rest}"


@pytest.mark.parametrize("name", one_in(3, machine_names()))
def test_a_written_machine_reads_back_equal(name: str, tmp_path: Path) -> None:
    rows = ((2.0, 1024.0, 1e-5),)
    profile = Profile(
        {"add@fp32": MeasuredTable(("ranks", "nbytes", "seconds"), rows)},
        {"all_gather": MeasuredTable(("ranks", "bytes", "seconds"), rows)},
        {"host": "test"},
    )
    machine = dataclasses.replace(load_machine(name), profile=profile)
    written = json.dumps(machine_to_dict(machine))
    (tmp_path / "machine.json").write_text(written, encoding="utf-8")
    assert load_machine(str(tmp_path / "machine.json")) == machine


def test_a_machine_can_be_hashed_for_caches() -> None:
    assert hash(load_machine("alps")) == hash(load_machine("alps"))


def test_an_unknown_machine_is_answered_with_the_known_ones() -> None:
    assert_names(refusal("frontire"), "frontire", *machine_names(), "64x8xH100,8xNDR")


def test_an_unknown_key_is_answered_with_the_nearest(tmp_path: Path) -> None:
    path = changed_frontier(tmp_path, "memory_bandwidth =", "memory_bandwith =")
    assert_names(refusal(path), "mine.toml", "device.memory_bandwith", "device.memory_bandwidth")


def test_a_number_without_a_source_is_refused(tmp_path: Path) -> None:
    path = changed_frontier(tmp_path, 'source = "olcf: MI250X peaks, per GCD, matrix cores"', "")
    assert_names(
        refusal(path),
        "mine.toml",
        "device.peak_flops.bf16",
        "bf16",
        "value",
        "191.5 TFLOP/s",
        "source",
    )


def test_a_bare_number_where_a_unit_belongs_is_refused(tmp_path: Path) -> None:
    path = changed_frontier(tmp_path, 'fp64 = "47.9 TFLOP/s"', "fp64 = 47.9")
    assert_names(
        refusal(path, UnitError), "mine.toml", "device.peak_flops.fp64", "47.9", "191.5 TFLOP/s"
    )


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("local_links = 1", "local_links = 7.4", ("interconnect.local_links", "7.4")),
        ("[0, 1, 4]", "[0, 1]", ("node.links.pairs",)),
        ("[0, 1, 4]", "[0, 8, 4]", ("node.links.pairs", "[0, 8, 4]", "0", "7")),
        ("[0, 1, 4]", "[0, 1, 1.5]", ("node.links.pairs",)),
        ("[0, 0, 1, 1, 2, 2, 3, 3]", "[0, 0, 1]", ("node.nics.of_device", "3", "8")),
        ('value = "1 GiB"', 'value = "64 GiB"', ("device.reserve", "64 GiB", "device.memory")),
        ("e_max = 0.688", "e_max = 0", ("device.matmul.e_max", "0", "1")),
        ("e_max = 0.688", "e_max = 65.5", ("device.matmul.e_max", "65.5", "0", "1", "0.655")),
        (
            "efficiency_across = 0.7362",
            "efficiency_across = 1.01",
            ("software.all_gather.efficiency_across", "1.01", "0", "1"),
        ),
        (
            "compute_share = {value = 0.159",
            "compute_share = {value = 1",
            ("software.compute_share", "1", "0"),
        ),
        ("[interconnect]", "[interconect]", ("interconect", "interconnect")),
        ("[sources]", "[source]", ("source", "sources")),
        ('launch = "10 us"', "", ("device.matmul.launch", "s")),
        (
            'kind = "dragonfly"',
            'kind = "torus"',
            ("interconnect.kind", "torus", "dragonfly", "fat-tree", "none"),
        ),
        (
            'value = "adaptive"',
            'value = "best"',
            ("interconnect.routing", "best", "adaptive", "minimal"),
        ),
        ("{value = 77", "{value = 76", ("nodes", "9856", "9728")),
        (
            'confidence = "low"',
            'confidence = "so-so"',
            ("device.reserve", "so-so", "high", "medium", "low"),
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused_in_one_sentence(
    tmp_path: Path, old: str, new: str, named: tuple[str, ...]
) -> None:
    assert_names(refusal(changed_frontier(tmp_path, old, new)), "mine.toml", *named)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    assert_names(refusal(tmp_path / "no.toml"), "no.toml", os.strerror(errno.ENOENT))
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    assert_names(refusal(tmp_path / "bad.json"), "bad.json", "JSON")


def test_a_setting_replaces_one_value_and_its_source() -> None:
    machine = with_settings("frontier", {"device.peak_flops.bf16": "400 TFLOP/s"})
    assert machine.device.peak_flops_per_s["bf16"] == 400e12
    fact = next(fact for fact in machine.facts() if fact.key == "device.peak_flops.bf16")
    assert (fact.text, fact.source) == ("400 TFLOP/s", "set by the user")
    assert machine.node == load_machine("frontier").node


def test_settings_take_numbers_and_lists_as_text() -> None:
    settings = {"nodes": "2", "device.matmul.e_max": "0.8", "node.links.pairs": "[[0, 1, 1]]"}
    machine = with_settings("frontier", settings)
    assert (machine.devices, machine.device.matmul.e_max) == (16, 0.8)
    assert machine.node.links.pairs == ((0, 1, 1),)


@pytest.mark.parametrize(
    ("key", "value", "error", "named"),
    [
        (
            "device.peak_flops.bf61",
            "1 TFLOP/s",
            MachineError,
            ("device.peak_flops.bf61", "device.peak_flops.bf16"),
        ),
        (
            "device.peak_flops.bf16",
            "400 GB/s",
            UnitError,
            ("frontier", "device.peak_flops.bf16", "400 GB/s", "FLOP/s", "191.5 TFLOP/s"),
        ),
        ("node.devices", "577", MachineError, ("frontier", "node.devices", "577", "576")),
        ("node.devices", "eight", MachineError, ("frontier", "node.devices", "eight")),
        (
            "network.background",
            "10%",
            MachineError,
            ("frontier", "interconnect.background", "10%", "0.1"),
        ),
        ("device.matmul.m0", "foo", MachineError, ("frontier", "device.matmul.m0", "foo", "0.1")),
        (
            "device.slowest",
            "foo",
            MachineError,
            ("frontier", "device.slowest", "foo", "[devices, rate]"),
        ),
    ],
)
def test_a_wrong_setting_is_refused(
    key: str, value: str, error: type[SimgptError], named: tuple[str, ...]
) -> None:
    with pytest.raises(error) as caught:
        with_settings("frontier", {key: value})
    assert_names(str(caught.value), *named)


@pytest.mark.parametrize(
    "key",
    [
        "device.matmul.e_max",
        "device.matmul.memory_fraction",
        "device.matmul.sustained",
        "device.memory_efficiency",
        "device.efficiency_of.gelu",
        "device.attention.forward",
        "device.attention.backward",
        "software.all_gather.efficiency_across",
        "software.all_gather.efficiency_within",
    ],
)
def test_all_of_what_there_is_can_be_reached_and_no_more(key: str) -> None:
    assert with_settings("frontier", {key: "1"}).entries
    for value in ("1.001", "0", "-0.5"):
        with pytest.raises(MachineError, check=names(key, value, "0", "1")):
            with_settings("frontier", {key: value})


def test_a_setting_may_be_so_many_times_what_the_machine_says() -> None:
    """Perlmutter's NICs have 25 GB/s, its device 0.844 of the memory's rate, its 1,536 nodes."""
    settings = {
        "network.link_bandwidth": "0.5x",
        "device.memory_efficiency": "1.1x",
        "nodes": ".5x",
    }
    machine = with_settings("perlmutter", {**settings, "nodes": ".5x"})
    facts = {fact.key: fact for fact in machine.entries}
    link = facts["interconnect.link_bandwidth"]
    assert (link.text, link.source) == ("12500000000.0 B/s", "set by the user: 0.5x")
    assert machine.device.memory_efficiency == pytest.approx(0.844 * 1.1)
    assert machine.nodes == 768


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("node.nics.of_device", "2x", ("node.nics.of_device", "2x")),
        ("device.tail", "2x", ("device.tail", "device.name")),
        ("device.memory_efficiency", "2x", ("device.memory_efficiency", "1.534", "0.01534")),
        ("nodes", "0.0001x", ("nodes", "0.9856")),
        ("node.nics.bandwidth", "-1x", ("node.nics.bandwidth", "-25000000000.0 B/s", "0")),
        ("device.matmul.fp8", "2x", ("device.matmul.fp8", "2x", "frontier")),
    ],
)
def test_a_multiple_of_what_is_no_number_or_not_there_is_refused(
    key: str, value: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(MachineError, check=names(*named)):
        with_settings("frontier", {key: value})


def test_a_ratio_of_two_rates_may_be_above_one() -> None:
    ratios = ("device.matmul.fp8", "device.matmul.forms.NT", "software.all_gather.overlap")
    assert with_settings("frontier", dict.fromkeys(ratios, "1.5")).device.matmul.fp8 == 1.5


@pytest.mark.parametrize("key", ["software.compute_share", "network.background"])
def test_others_may_take_nothing_but_not_all(key: str) -> None:
    for value in ("0", "0.99"):
        assert with_settings("frontier", {key: value}).entries
    for value in ("1", "2", "-0.1"):
        with pytest.raises(MachineError, check=names(key.split(".")[1], value, "0", "1")):
            with_settings("frontier", {key: value})


def test_loading_a_machine_imports_neither_networkx_nor_torch() -> None:
    code = (
        "import sys; from topologies.machine_files import load_machine; "
        "from topologies.collectives import collective_time; "
        "from topologies.routing import graph, rings; load_machine('frontier'); "
        "sys.exit(bool({'networkx', 'torch', 'scipy'} & set(sys.modules)))"
    )
    root = Path(topologies.__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def built_by_cattrs(tables: dict[str, Any]) -> Machine:
    """A machine of tables, made by a library that takes longer to import than to predict."""
    converter = Converter(forbid_extra_keys=True)

    def by_key(cls: type) -> Callable[[Any, Any], Any]:
        renamed: Any = {each.attribute: override(rename=each.key.name) for each in fields_of(cls)}
        return make_dict_structure_fn(cls, converter, **renamed)

    converter.register_structure_hook_factory(dataclasses.is_dataclass, by_key)
    kinds = {kind: by_key(cls) for kind, cls in KINDS.items()}
    converter.register_structure_hook(Interconnect, lambda at, _: kinds[at["kind"]](at, None))
    return converter.structure(tables, Machine)


@pytest.mark.parametrize("name", one_in(3, machine_names()))
def test_a_machine_is_built_as_cattrs_builds_it(name: str) -> None:
    for variant in variant_names(name) or [""]:
        machine = load_machine(f"{name}:{variant}" if variant else name)
        tables: dict[str, Any] = {}
        known = known_keys(machine.interconnect.kind)
        for path, value in checked(machine.entries, known, name).items():
            put(tables, path, value)
        expected = built_by_cattrs(tables)
        assert repr(_machine(tables, name)) == repr(expected)  # an integer is no float
        assert machine == dataclasses.replace(expected, entries=machine.entries)


@pytest.mark.parametrize(
    ("name", "key", "given", "multiple"),
    [
        ("dgx-h100", "node.links.bandwidth", "900 GB/s", "36x"),
        ("perlmutter", "node.nics.bandwidth", "1 TB/s", "40x"),
        ("frontier", "network.link_bandwidth", "25 TB/s", "1000x"),
    ],
)
def test_the_rate_of_all_links_is_not_taken_for_that_of_one(
    name: str, key: str, given: str, multiple: str
) -> None:
    field = key.replace("network", "interconnect")
    with pytest.raises(MachineError, check=names(field, given, name, "25 GB/s", multiple)):
        with_settings(name, {key: given})


def test_four_times_the_known_rate_and_any_multiple_are_taken() -> None:
    for given in ("100 GB/s", "4x"):
        links = with_settings("dgx-h100", {"node.links.bandwidth": given}).node.links
        assert links.bytes_per_s == 100e9
    assert with_settings("dgx-h100", {"node.links.bandwidth": "36x"}).node.links.bytes_per_s == 9e11
    own = with_settings("dgx-h100", {"device.memory_bandwidth": "100 TB/s"})
    assert own.device.memory_bytes_per_s == 1e14


def test_a_rate_of_one_link_says_what_all_have() -> None:
    assert "18 x 25 GB/s = 450 GB/s" in rate_words(load_machine("dgx-h100"), "node.links.bandwidth")
    assert "7 x 64 GB/s = 448 GB/s" in rate_words(
        load_machine("2x8xMI300X"), "node.links.bandwidth"
    )
    assert "4 x 25 GB/s = 100 GB/s" in rate_words(load_machine("frontier"), "node.nics.bandwidth")
    assert rate_words(load_machine("frontier"), "node.links.bandwidth") == ""  # its pairs differ
