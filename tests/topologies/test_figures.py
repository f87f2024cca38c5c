"""Figures are written for every machine, and drawing them loads matplotlib only then."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import topologies
from tests.messages import names
from topologies.errors import MachineError, SimgptError
from topologies.figures import draw_interconnect, draw_node
from topologies.machine_files import load_machine


@pytest.mark.parametrize(
    "name",
    [
        "frontier",
        "host",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("perlmutter", "dgx-h100")),
    ],
)
def test_a_node_shows_every_device_and_nic(name: str, tmp_path: Path) -> None:
    machine = load_machine(name)
    draw_node(machine, tmp_path / "node.svg")
    text = (tmp_path / "node.svg").read_text(encoding="utf-8")
    words = [f"<!-- {d} -->" for d in range(machine.devices_per_node)]
    words += [f"<!-- NIC {k} -->" for k in range(machine.node.nics.count)]
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("name", "title"), [("perlmutter", "24 groups"), ("dgx-a100", "7 units (2 shown)")]
)
def test_an_interconnect_says_how_large_it_is(name: str, title: str, tmp_path: Path) -> None:
    draw_interconnect(load_machine(name), tmp_path / "net.svg")
    assert title in (tmp_path / "net.svg").read_text(encoding="utf-8")


def test_a_single_node_has_no_interconnect_to_draw(tmp_path: Path) -> None:
    with pytest.raises(MachineError, check=names("host")):
        draw_interconnect(load_machine("host"), tmp_path / "net.png")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("no/such/folder.png", ("folder.png", os.strerror(errno.ENOENT))),
        ("node.doc", ("node.doc", "svg")),
    ],
)
def test_a_figure_that_cannot_be_written_is_refused(
    path: str, named: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(SimgptError, check=names(*named)):
        draw_node(load_machine("host"), tmp_path / path)


def test_matplotlib_is_loaded_only_to_draw() -> None:
    code = "import sys, topologies.figures; sys.exit('matplotlib' in sys.modules)"
    root = Path(topologies.__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
