"""Machines named by their parts, as in `64x8xH100,8xNDR`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from tests.messages import names
from topologies.errors import MachineError
from topologies.hardware.device_library import gpu_of, gpus
from topologies.machine_files import build_machine, load_machine
from topologies.parts import Parts, fabrics
from topologies.parts_text import nics, parse_parts, parts_text
from validation.published.run_machine import parts_of
from validation.published.runs import read_runs

KNOWN = st.sampled_from([gpu["name"] for gpu in gpus()])
RATES = st.one_of(st.just(0.0), st.floats(1e-3, 1e15), st.integers(1, 10**13).map(float))


@few_and_many(
    30,
    100,
    settings(),
    parts=st.builds(
        Parts,
        gpu=KNOWN,
        nodes=st.integers(1, 10**9 - 1),
        devices_per_node=st.integers(0, 10**9 - 1),
        nics_per_node=st.integers(0, 10**9 - 1),
        nic_bits_per_s=RATES,
        fabric=st.sampled_from(["", "none", *fabrics()]),
        name=st.text(st.characters(exclude_categories=["Cs"])),
    ),
)
def test_parts_read_back_from_their_text_with_what_is_unset_unset(parts: Parts) -> None:
    text = parts_text(parts)
    assert parse_parts(text) == parts
    assert not set(text) & set(" \t\n:")
    assert not text.endswith(".toml")


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_the_rows_of_published_runs_have_the_same_machines_from_their_text(every: int) -> None:
    rows = {parts_of(run): None for run in read_runs() if is_known(run.text("gpu"))}
    assert len(rows) > 100
    for parts in [*rows][::every]:
        own, read = build_machine(parts), load_machine(parts_text(parts))
        assert (own, own.entries) == (read, read.entries)


def is_known(gpu: str) -> bool:
    """Whether rows with it have machines; some of the published runs are on others."""
    try:
        return bool(gpu_of(gpu))
    except MachineError:
        return False


def test_counts_of_nodes_devices_and_nics_come_in_this_order() -> None:
    assert parse_parts("64x8xH100,4xNDR") == Parts("h100", 64, 8, 4, 400e9, "infiniband")
    assert parse_parts("64xH100") == Parts("h100", 64)
    assert parse_parts("2x4xMI250X,25Gbit/s,ROCE") == Parts("mi250x", 2, 4, 0, 25e9, "roce")
    assert parse_parts("2xA100,0.2tbit/s") == parse_parts("2xA100,200 Gbit/s")
    assert parse_parts("2xA100,4xnic").nics_per_node == 4


def test_a_kind_of_nic_says_its_fabric_unless_another_is_named() -> None:
    assert parse_parts("2xH100,Slingshot-11").fabric == "slingshot"
    words = ("2xH100,8xNDR,roce", "2xH100,roce,8xNDR")
    assert {parse_parts(text).fabric for text in words} == {"roce"}


@pytest.mark.parametrize(
    ("also", "kind"), [("NDR400", "NDR"), ("hdr200", "HDR"), ("XDR800", "XDR"), ("EDR100", "EDR")]
)
def test_a_nic_may_be_called_with_its_rate(also: str, kind: str) -> None:
    assert parse_parts(f"2x8xH100,8x{also}") == parse_parts(f"2x8xH100,8x{kind}")


@pytest.mark.parametrize("kind", nics())
def test_every_kind_of_nic_has_a_rate_a_fabric_and_a_source(kind: str) -> None:
    parts = parse_parts(f"2x8xH100,8x{kind}")
    assert 100e9 <= parts.nic_bits_per_s <= 800e9
    assert parts.fabric in fabrics()
    assert "Gbit/s" in nics()[kind]["source"]


def test_a_gpu_is_known_by_the_name_of_its_entry_in_any_case() -> None:
    assert [gpu_of(name)["name"] for name in ("A100-40", "H100-hbm2e", "a100-64")] == [
        "a100-40",
        "h100-hbm2e",
        "a100-64",
    ]
    assert load_machine("2xA100-40").device.memory_bytes == 40960 * 2**20


def test_a_machine_of_parts_is_called_by_them_and_has_the_variants_of_its_library() -> None:
    machine = load_machine("64x8xH100,8xNDR:pytorch")
    assert machine.full_name == "64x8xh100,8x400Gbit/s,infiniband:pytorch"
    assert load_machine(machine.full_name) == machine
    assert machine.software.algorithm.all_reduce == "ring"
    assert (machine.devices, machine.node.nics.bytes_per_s) == (512, 50e9)


def test_a_name_that_ends_as_a_files_is_a_name() -> None:
    parts = Parts("h100", 2, name="lab:a/b.toml")
    assert load_machine(parts_text(parts)).name == "lab:a/b.toml"


def test_a_shipped_machine_is_named_only_by_parts_that_it_has() -> None:
    names = "4x4xA100,name=perlmutter", "4x4xA100,roce,name=perlmutter", "4x4xH100,name=perlmutter"
    assert [load_machine(name).interconnect.kind for name in names] == [
        "dragonfly",
        "fat-tree",
        "fat-tree",
    ]
    parts = Parts("A100-40", 4, 4, 2, 200e9, "slingshot", "perlmutter")
    assert build_machine(parts).node.nics.count == 2
    assert build_machine(replace(parts, nics_per_node=4, nic_bits_per_s=100e9)).nodes == 4


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("64x8xH10", ("H10", "h100")),
        ("64x8xH1000", ("H1000",)),
        ("64x8xGH100", ("GH100",)),
        ("64x8xH100-999", ("H100-999", "h100", "999")),
        ("64x8xH200-pcie", ("h200", "pcie")),
        ("8x8xH100,8x400Gb/s", ("8x400Gb/s", "400Gbit/s", "400GB/s")),
        ("8x8xH100,8x400G", ("8x400G", "400Gbit/s")),
        ("64x8xH100,", ("NIC", "64x8xH100,8xNDR")),
        ("64x8xH100,0xNDR", ("0xNDR", "64x8xH100,8xNDR")),
        ("64x8x", ("64x8x", "64x8xH100")),
        ("0x8xH100", ("0x8xH100", "64x8xH100,8xNDR")),
        ("64x0xH100", ("64x0xH100", "64x8xH100,8xNDR")),
        (f"{10**10}xH100", (f"{10**10}xH100", "64x8xH100,8xNDR")),
        ("2xH100,NDR,HDR", ("2xH100,NDR,HDR", "NICs", "64x8xH100,8xNDR")),
        ("2xH100,roce,efa", ("2xH100,roce,efa", "fabric", "64x8xH100,8xNDR")),
        ("2xH100,roce:pytorch", ("pytorch", "dgx-h100")),
        ("2x8xH100:pytorc", ("dgx-h100", "pytorc", "pytorch")),
        ("2x577xH100", ("node.devices", "577", "576")),
        ("x8xH100", ("x8xH100", "64x8xH100,8xNDR")),
    ],
)
def test_what_is_no_part_is_refused_in_a_sentence(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(MachineError, check=names(*named)):
        load_machine(text)


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("8xXDR400", "NDR"),
        ("8xNDRR", "NDR"),
        ("8xslingshot11", "Slingshot-11"),
        ("8xNDR800", "XDR"),
        ("8xRoCE400", "RoCE-400"),
        ("8xHDR400", "NDR"),
        ("infiniban", "infiniband"),
    ],
)
def test_a_nic_that_is_not_known_is_answered_with_all_and_then_the_nearest(
    word: str, nearest: str
) -> None:
    with pytest.raises(MachineError, check=names(word, "400Gbit/s")) as refused:
        load_machine(f"64x8xH100,{word}")
    assert str(refused.value).split()[-1] == nearest


@pytest.mark.parametrize("text", ["2x8xH100-80GB", "2x8xH100-SXM5-80GB", "2x8xnvidia-h100"])
def test_words_that_say_nothing_else_belong_to_a_device(text: str) -> None:
    assert parse_parts(text).gpu == "h100"


def test_the_rate_of_a_nic_may_be_in_bytes() -> None:
    assert parse_parts("2xH100,8x50GB/s") == parse_parts("2xH100,8x400Gbit/s")


@pytest.mark.parametrize("name", ["H1000", "GH100", "MI3000X"])
def test_a_part_of_a_word_is_no_gpu(name: str) -> None:
    with pytest.raises(MachineError, check=names(name)):
        gpu_of(name)
