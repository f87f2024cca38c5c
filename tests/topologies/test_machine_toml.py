"""Machines written as TOML files, which read as the same machines."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many, one_in
from topologies.files.printable import toml_text
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.machine import Machine, machine_to_dict
from topologies.machine_files import load_machine, with_settings
from topologies.shipped import machine_names, variant_names

OF_PARTS = ["64x8xH100,8xNDR", "3x4xA100-40,2xHDR,roce", "2x8xMI250X,efa"]
VARIANTS = [f"{name}:{each}" for name in machine_names() for each in variant_names(name)]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.one_of(TEXT, st.integers(-(2**63), 2**63), FLOATS, st.booleans())
VALUES = st.recursive(
    LEAVES, lambda each: st.lists(each) | st.dictionaries(TEXT, each), max_leaves=9
)


def assert_reads_back(machine: Machine, folder: Path) -> None:
    path = folder / "machine.toml"
    path.write_text(toml_text(machine_to_dict(machine)), encoding="utf-8")
    read = load_machine(str(path))
    assert read == machine
    assert read.entries == machine.entries


@pytest.mark.parametrize("name", one_in(3, [*machine_names(), *VARIANTS, *OF_PARTS]))
def test_a_machine_reads_back_from_its_toml(name: str, tmp_path: Path) -> None:
    document = machine_to_dict(load_machine(name))
    assert tomllib.loads(toml_text(document)) == json.loads(json.dumps(document))
    assert_reads_back(load_machine(name), tmp_path)


def test_what_a_terminal_obeys_is_escaped() -> None:
    document = {"a\u202e": "b\x9b2J\xa0\x1b\t\U000e0001"}
    assert toml_text(document).replace("\n", "").isprintable()
    assert tomllib.loads(toml_text(document)) == document


def test_a_derived_a_changed_and_a_measured_machine_read_back(tmp_path: Path) -> None:
    base = 'base = "dgx-h100"\ndevice = "H200"\nnodes = {value = 70, source = "\\u0007 \\"é\\""}\n'
    (tmp_path / "lab.toml").write_text(base, encoding="utf-8")
    lab = load_machine(str(tmp_path / "lab.toml"))
    assert_reads_back(lab, tmp_path)
    changed = with_settings(
        "alps",
        {"software.nvls.launch": "1 us", "software.tuner": "none"}
        | {f"software.nvls.efficiency_{where}": 0.5 for where in ("across", "within")},
    )
    assert_reads_back(changed, tmp_path)
    rows = ((1.0, 8.0, 1e-05), (560.0, 1e15, 0.25))
    profile = Profile(
        {"add@fp32": MeasuredTable(("ranks", "nbytes", "seconds"), rows)},
        {"all_gather": MeasuredTable(("ranks", "bytes", "seconds"), rows)},
        {"host": "a b"},
        {"add@fp32": 1e-6},
    )
    assert_reads_back(dataclasses.replace(lab, profile=profile), tmp_path)


@few_and_many(15, 50, settings(), document=st.dictionaries(TEXT, VALUES))
def test_any_document_reads_back(document: dict[str, object]) -> None:
    assert tomllib.loads(toml_text(document)) == document


def test_a_value_has_a_table_with_its_source_under_it() -> None:
    lines = toml_text(machine_to_dict(load_machine("dgx-h100"))).splitlines()
    assert 'name = "dgx-h100"' in lines[:5]
    at = lines.index("[device.memory]")
    assert lines[at + 1] == 'value = "81559 MiB"'
    assert lines[at + 2].startswith('source = "nvidia-smi, the memory.total of a device')
