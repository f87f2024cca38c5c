"""Machine files that take over another machine, a device of the library, or a library."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.predict import predict
from tests.messages import names
from topologies.errors import MachineError
from topologies.files.facts import LABELS
from topologies.hardware.assumptions import ASSUMED, assumed
from topologies.machine import Machine, known_keys
from topologies.machine_files import load_machine
from topologies.shipped import machine_names
from workload.gpt import find_model
from workload.plan_text import parse_plan

H200 = """
base = "dgx-h100"
device = "H200"
nodes = {value = 16, source = "procurement document"}
"""
TOO_FINE = ("size", "best", "links", "nics", "variant", "peak_flops", "algorithm", "forms_from",
            "run_to_run", "reliability", "storage", "tray", "segment")  # fmt: skip


def machine(folder: Path, text: str, name: str = "lab.toml") -> Machine:
    (folder / name).write_text(text, encoding="utf-8")
    return load_machine(str(folder / name))


def fact_of(given: Machine, key: str) -> tuple[object, str, str]:
    fact = next(fact for fact in given.entries if fact.key == key)
    return fact.value, fact.source, fact.inherited


def mfu(given: Machine) -> float:
    plan = parse_plan("tp=4,dp=rest,mbs=1,recompute=full", devices=64, batch=256)
    return predict(find_model("gpt-20b"), plan, given).mfu


def test_an_h200_by_its_base_and_device_has_nearly_the_mfu_of_an_h100(tmp_path: Path) -> None:
    lab = machine(tmp_path, H200)
    assert (lab.name, lab.device.memory_bytes, lab.devices) == ("lab", 143771 * 2**20, 128)
    assert 0.2 < mfu(lab) == pytest.approx(mfu(load_machine("dgx-h100")), abs=0.02)


def test_a_device_takes_what_collectives_reach_over_its_own_links(tmp_path: Path) -> None:
    """All-to-alls of 64 GPUs of a GB200 rack, as gb200-nvl72 has them; not where a file says more,
    nor with a library of its own."""
    text = 'base = "dgx-h100"\ndevice = "B200"\n'
    reached = machine(tmp_path, text, "b200.toml").software.all_to_all
    rack = load_machine("gb200-nvl72").software.all_to_all
    hopper = load_machine("dgx-h100").software.all_to_all
    assert reached
    assert rack
    assert hopper
    assert reached.efficiency_within == rack.efficiency_within == 0.6605
    assert reached.efficiency_across == hopper.efficiency_across
    own = '[software.all_to_all]\nefficiency_within = {value = 0.5, source = "measured"}\n'
    found = machine(tmp_path, text + own, "own.toml").software.all_to_all
    assert found
    assert found.efficiency_within == 0.5
    library = machine(tmp_path, text + 'software = "dgx-h100"\n', "library.toml").software
    assert library.all_to_all == hopper


def test_each_value_says_whether_it_is_the_files_or_where_it_was_inherited(tmp_path: Path) -> None:
    own = '[device]\nbase = "H200"\nmatmul.sustained = {value = 0.8, source = "here"}\n'
    lab = machine(tmp_path, H200.replace('device = "H200"\n', "") + own)
    assert fact_of(lab, "nodes") == (16, "procurement document", "")
    assert fact_of(lab, "device.memory") == (
        "143771 MiB",
        "nvidia-smi, memory.total of an NVIDIA H200",
        "device h200",
    )
    assert fact_of(lab, "node.links.switch")[2] == "device h200"
    assert fact_of(lab, "device.matmul.e_max")[2] == "dgx-h100:nccl"
    assert fact_of(lab, "device.matmul.sustained") == (0.8, "here", "")


def test_a_file_builds_on_one_beside_it_and_on_the_library_of_a_third(tmp_path: Path) -> None:
    machine(tmp_path, H200)
    text = 'base = "lab.toml"\nsoftware = "nccl-ampere-slingshot"\n'
    other = machine(tmp_path, f'{text}[device]\nbase = "a800"\n', "other.toml")
    assert (other.devices, other.node.links.switch) == (128, 8)
    assert other.software.name == load_machine("perlmutter").software.name
    assert other.device.matmul == load_machine("dgx-a100").device.matmul
    assert other.software.nvls is None
    assert fact_of(other, "nodes")[2] == "lab"
    assert fact_of(other, "node.devices")[2] == "dgx-h100:nccl"


def test_what_belongs_together_follows_what_is_given(tmp_path: Path) -> None:
    nics = 'node.nics = {source = "ibstat", count = 4, bandwidth = "25 GB/s"}\n'
    lab = machine(tmp_path, H200.replace("16", "70") + nics)
    tree = lab.interconnect
    assert tree.kind == "fat-tree"
    assert lab.node.nics.of_device == (0, 0, 1, 1, 2, 2, 3, 3)
    facts = [fact_of(lab, f"interconnect.{key}")[0] for key in ("units", "rails", "link_bandwidth")]
    assert facts == [3, 4, "25 GB/s"]
    assert lab.power is not None  # an H200 draws as much as an H100
    half = machine(tmp_path, f'{H200}node.devices = {{value = 4, source = "here"}}\n')
    assert (half.node.nics.count, half.node.nics.of_device, half.power) == (4, (0, 1, 2, 3), None)


def test_the_bases_file_system_and_spread_of_runs_are_its_own(tmp_path: Path) -> None:
    base = load_machine("frontier")
    assert base.storage
    assert base.run_to_run
    text = 'base = "frontier"\n'
    lab = machine(tmp_path, text)
    assert (lab.storage, lab.run_to_run) == (None, None)
    own = '[storage]\nsource = "here"\nwrite = "1 GB/s"\nread = "2 GB/s"\n'
    stored = machine(tmp_path, text + own, "own.toml").storage
    assert stored
    assert stored.write_bytes_per_s == 1e9
    assert stored.node_bytes_per_s is None


def test_a_variant_and_other_links_take_the_place_of_the_bases(tmp_path: Path) -> None:
    links = 'node.links = {source = "topo -m", bandwidth = "25 GB/s", all_pairs = 2}\n'
    own = "[variants.mine.software]\nsource = 'here'\ntuner = 'none'\n"
    lab = machine(tmp_path, H200 + links + own)
    assert lab.full_name == "lab:mine"
    assert lab.software.tuner == "none"
    assert (lab.node.links.switch, lab.node.links.all_pairs) == (0, 2)
    assert lab.software.nvls is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('base = "lab.toml"', ("lab.toml",)),
        ('base = "dgx-h10"', ("dgx-h10",)),
        ("base = 3", ("lab.toml", "3")),
        ('base = "dgx-h100"\ndevice = "TPU"', ("TPU",)),
        ('base = "dgx-h100"\nsoftware = "nccl-hoper"', ("nccl-hoper", "nccl-hopper")),
        ('base = "dgx-h100"\nnodes = 4', ("lab.toml", "nodes", "source")),
        ('device = "H200"', ("lab.toml", "interconnect.kind")),
        ('base = "dgx-h100"\n[profile]', ("lab.toml", "base")),
        (
            'base = "dgx-h100"\n[device]\nsource = "here"\nmemry = "1 B"',
            ("device.memry", "device.memory"),
        ),
    ],
)
def test_a_base_that_cannot_be_one_is_refused(
    tmp_path: Path, text: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(MachineError, check=names(*named)):
        machine(tmp_path, text)


def test_a_long_line_of_files_ends_somewhere(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.toml").write_text(f'base = "{number + 1}.toml"\n', encoding="utf-8")
    with pytest.raises(MachineError, check=names("0.toml", "1.toml")):
        load_machine(str(tmp_path / "0.toml"))


def test_every_value_of_the_device_and_its_library_that_may_be_left_out_is_assumed_aloud() -> None:
    leaves = [leaf for leaf in known_keys("fat-tree").values() if not leaf.required or leaf.inside]
    curves = {key for name in ("hierarchical", "recursive") for key in (f"software.{name}",)}
    curves |= {f"software.{name}" for name in ("tree", "nvls", "broadcast", "all_to_all")}
    curves |= {"software.all_gather", "software.send_recv"}
    silent = [
        leaf.key
        for leaf in leaves
        if not any(f"{leaf.key}.".startswith(f"{key}.") for key in (*ASSUMED, *curves))
        and not set(leaf.key.split(".")) & {*TOO_FINE, *LABELS}
    ]
    assert silent == []


@pytest.mark.parametrize("name", machine_names())
def test_what_is_assumed_is_what_the_machine_does_not_say(name: str) -> None:
    keys = [fact.key for fact in load_machine(name).entries]
    for key in assumed(keys):
        assert not any(f"{given}.".startswith(f"{key}.") for given in keys)
    assert "device.matmul.sustained" in assumed([k for k in keys if "sustained" not in k])
