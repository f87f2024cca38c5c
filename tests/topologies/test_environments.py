"""Environments: GPUDirect off, on every machine with NICs, under whatever variant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import one_in
from tests.messages import names
from topologies.environments import ENVIRONMENTS, NO_GDR, in_environment, staged_bytes_per_s
from topologies.errors import MachineError
from topologies.machine_files import load_machine, with_settings
from topologies.shipped import machine_names

FRONTIER = "frontier:no-gdr"


def test_a_staged_byte_takes_the_sum_of_three_ways() -> None:
    """25 GB/s over the NIC and twice 50 GB/s over the hosts' links: 0.04 + 0.02 + 0.02 ns."""
    assert staged_bytes_per_s(25e9, 50e9) == pytest.approx(12.5e9)


def test_two_nics_of_a_device_share_what_its_host_link_lets_through() -> None:
    """100 GB/s over two NICs and twice 50 GB/s over the hosts' links: 20 GB/s, 10 for each NIC."""
    usual = with_settings("2x4xH100,4xNDR", {"node.nics.count": 8})
    assert (usual.node.nics.bytes_per_s, usual.node.host.bytes_per_s) == (50e9, 50e9)
    assert in_environment(usual, NO_GDR).node.nics.bytes_per_s == pytest.approx(10e9)


@pytest.mark.parametrize(
    "name", one_in(4, [n for n in machine_names() if load_machine(n).node.nics.count])
)
def test_every_machine_with_nics_has_no_gdr_and_its_devices_keep_what_they_are(name: str) -> None:
    usual, staged = load_machine(name), load_machine(f"{name}:no-gdr")
    assert staged.node.nics.bytes_per_s < usual.node.nics.bytes_per_s
    assert staged.full_name.endswith(":no-gdr")
    assert (staged.device, staged.software) == (usual.device, usual.software)
    (fact,) = [each for each in staged.facts() if each.key == "node.nics.bandwidth"]
    assert fact.source.startswith("no-gdr")
    assert fact.confidence in ("medium", "low")


def test_without_gpudirect_frontier_s_nodes_send_what_axonn_s_authors_measured() -> None:
    """34.0, 2 x 20.6 and 4 x 10.2 GB/s; with GPUDirect 100 are nominal."""
    nics = load_machine(FRONTIER).node.nics
    assert 34.0 < nics.count * nics.bytes_per_s / 1e9 < 1.05 * 41.2


def test_on_gh200_gpudirect_off_costs_little_as_nccl_s_issue_1579_measured() -> None:
    """All-gathers of one GH200 a node: 82.2 of 94.5 GB/s."""
    usual, staged = load_machine("jupiter-booster"), load_machine("jupiter-booster:no-gdr")
    share = staged.node.nics.bytes_per_s / usual.node.nics.bytes_per_s
    assert share == pytest.approx(82.2 / 94.5, abs=0.05)


def test_an_environment_follows_a_variant_a_file_or_parts(tmp_path: Path) -> None:
    both = load_machine("frontier:rccl-default:no-gdr")
    assert both.software == load_machine("frontier:rccl-default").software
    assert both.node == load_machine(FRONTIER).node
    assert load_machine(both.full_name) == both
    path = tmp_path / "mine.toml"
    path.write_text('base = "frontier:no-gdr"\n', encoding="utf-8")
    assert load_machine(str(path)).node.nics == both.node.nics
    assert load_machine("2x8xH100,8xNDR:no-gdr").node.nics.bytes_per_s == pytest.approx(16.67e9)
    assert with_settings("perlmutter:no-gdr", {"nodes": "2"}).variant == "nccl:no-gdr"


def test_what_the_default_s_runs_were_like_is_not_said_of_an_environment() -> None:
    assert load_machine("frontier").run_to_run is not None
    assert load_machine(FRONTIER).run_to_run is None


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("host:no-gdr", ("host", "NICs", "no-gdr")),
        ("frontier:no-gdr:no-gdr", ("frontier:rccl-rendezvous:no-gdr",)),
        ("frontier:nogdr", ("nogdr", "no-gdr")),
        (
            "frontier:no-gdr:rccl-early",
            ("frontier:no-gdr:rccl-early", "frontier:rccl-early:no-gdr"),
        ),
        ("no-such:no-gdr", ("no-such",)),
    ],
)
def test_what_has_no_such_environment_is_refused(name: str, named: tuple[str, ...]) -> None:
    with pytest.raises(MachineError, check=names(*named)):
        load_machine(name)


def test_a_file_s_variant_may_not_take_an_environment_s_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    (name,) = ENVIRONMENTS
    path.write_text(f'base = "frontier"\n[variants.{name}]\n', encoding="utf-8")
    with pytest.raises(MachineError, check=names(f"variants.{name}")):
        load_machine(str(path))


def test_a_library_is_in_no_environment(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "alps"\nsoftware = "frontier:no-gdr"\n', encoding="utf-8")
    with pytest.raises(MachineError, check=names("software", "frontier:no-gdr", "-m")):
        load_machine(str(path))
