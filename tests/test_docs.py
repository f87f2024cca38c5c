"""The machine file in the documentation is a machine, and predicts."""

from __future__ import annotations

import re
from pathlib import Path

from simulator.prediction import predict
from topologies.load import load_machine
from workload.gpt import find_model
from workload.plan_text import parse_plan

PAGE = Path(__file__).resolve().parent.parent / "docs" / "your-cluster.md"


def test_the_documented_cluster_can_be_predicted_on(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    path = tmp_path / "mycluster.toml"
    path.write_text(found[1], encoding="utf-8")
    machine = load_machine(str(path))
    assert (machine.devices, machine.devices_per_node) == (64, 4)
    plan = parse_plan("z=8,data=rest,recompute=full", devices=64, batch=512)
    assert predict(find_model("gpt-5b"), plan, machine).memory.fits
