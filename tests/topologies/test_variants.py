"""Variants of a machine's software, and the spread of its devices' speed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import topologies
from tests.messages import assert_names, names
from topologies.errors import MachineError
from topologies.machine import machine_to_dict
from topologies.machine_files import load_machine, with_settings
from topologies.shipped import variant_names

FRONTIER = Path(topologies.__file__).parent / "machines" / "frontier.toml"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Perlmutter with two variants of its own, of which the second changes three values."""
    text = (FRONTIER.parent / "perlmutter.toml").read_text(encoding="utf-8")
    text = (
        text.split("\n[variants")[0]
        + """
[variants.plain]

[variants.tuned.software]
name = "tuned"
compute_share = {value = 0.1, source = "estimate: a test"}

[variants.tuned.software.all_gather]
source = "estimate: another test"
launch = "1 us"
"""
    )
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_first_variant_is_the_default() -> None:
    assert variant_names("frontier")[0] == "rccl-rendezvous"
    assert load_machine("frontier") == load_machine("frontier:rccl-rendezvous")
    assert load_machine("frontier").full_name == "frontier:rccl-rendezvous"
    assert load_machine("frontier").name == "frontier"


def test_a_variant_replaces_the_keys_that_it_gives_and_no_others(mine: Path) -> None:
    plain, tuned = load_machine(str(mine)), load_machine(f"{mine}:tuned")
    assert (plain.variant, tuned.variant) == ("plain", "tuned")
    assert tuned.software.name == "tuned"
    assert tuned.software.compute_share == 0.1
    assert plain.software.all_gather is not None
    assert tuned.software.all_gather is not None
    assert tuned.software.all_gather.launch_s == 1e-6
    assert tuned.software.all_gather.overlap == plain.software.all_gather.overlap
    assert tuned.software.reduce_scatter == plain.software.reduce_scatter
    sources = {fact.key: fact.source for fact in tuned.facts()}
    assert sources["software.all_gather.launch"] == "estimate: another test"
    assert sources["software.all_gather.overlap"].startswith("github.com/axonn-ai")


def test_a_written_variant_reads_back_equal(mine: Path, tmp_path: Path) -> None:
    machine = load_machine(f"{mine}:tuned")
    (tmp_path / "tuned.json").write_text(json.dumps(machine_to_dict(machine)), encoding="utf-8")
    assert load_machine(str(tmp_path / "tuned.json")) == machine
    assert with_settings(machine, {"nodes": "2"}).variant == "tuned"


def test_an_unknown_variant_is_answered_with_the_known_ones(mine: Path) -> None:
    with pytest.raises(MachineError) as error:
        load_machine(f"{mine}:tunde")
    assert_names(str(error.value), "mine.toml", "tunde", "plain", "tuned", "no-gdr")
    with pytest.raises(MachineError, check=names("host", "gloo", "no-gdr")):
        load_machine("host:gloo")


def test_a_variant_may_change_software_alone(mine: Path) -> None:
    text = mine.read_text(encoding="utf-8").replace("[variants.plain]", "[variants.plain.node]")
    mine.write_text(text, encoding="utf-8")
    with pytest.raises(MachineError, check=names("variants.plain")):
        load_machine(str(mine))


def test_the_slowest_of_many_devices_is_six_percent_below_the_mean() -> None:
    device = load_machine("perlmutter").device
    assert device.slowest_of(1) == 1.0
    assert device.slowest_of(256) == pytest.approx(0.947)
    assert device.slowest_of(512) == pytest.approx((0.947 + 0.940) / 2)
    assert device.slowest_of(100_000) == pytest.approx(0.932)
    assert load_machine("frontier").device.slowest_of(1024) == 1.0


@pytest.mark.parametrize("table", ["[[256, 1.1]]", "[[256, 0.9], [128, 0.8]]", "[[1, 0.9]]"])
def test_a_table_of_slowest_devices_must_fall(table: str) -> None:
    with pytest.raises(MachineError, check=names("device.slowest", "rates", "1")):
        with_settings("perlmutter", {"device.slowest": table})


def test_a_variant_may_have_other_kernels_on_the_same_device() -> None:
    """Frontier's software of 2024 has NT at an eighth of the rate where n and k are 16,384."""
    plain, early = load_machine("frontier"), load_machine("frontier:rocm-5")
    assert plain.device.matmul.forms == {}
    assert early.device.matmul.forms == {"NT": 0.12}
    assert early.device.matmul.forms_from == 16384
    same = replace(early.device.matmul, forms={}, forms_from=0)
    assert replace(early.device, matmul=same) == plain.device
    assert early.software == plain.software
    assert load_machine("lumi:rocm-5").device.matmul.forms == {"NT": 0.12}
