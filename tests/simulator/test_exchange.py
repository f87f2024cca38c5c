"""All-to-alls of a program: how long they take, alone and beside other collectives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.engine.simulate import simulate_timeline
from simulator.ranks.fabric import MachineFabric
from tests.blocks import BLOCK
from tests.simulator.worlds import SmallCosts, by_hand, compute, standing
from topologies.collectives.collective_time import collective_seconds
from topologies.machine_files import load_machine
from workload.op import Op

FRONTIER = load_machine("frontier")


def exchange(name: str, axis: str, nbytes: int, stream: str = "compute") -> Op:
    operands = ("sent",), (name,)
    return standing(Op(name, "all_to_all", *operands, BLOCK, stream, (axis,), nbytes))


def test_an_all_to_all_takes_its_time_on_the_machine_after_what_it_reads() -> None:
    program = by_hand("data=16", compute("work", "", "sent"), exchange("got", "data", 1 << 24))
    fabric = MachineFabric(FRONTIER, 16)
    spans = simulate_timeline([program], SmallCosts(), fabric).spans
    work, got = (next(span for span in spans if span.op.name == name) for name in ("work", "got"))
    assert got.start_s == pytest.approx(work.end_s)
    (ring,), _ = fabric.rings([program.plan.grid.groups("data")])[0]
    own = collective_seconds(FRONTIER, "all_to_all", 1 << 24, ring)
    assert got.end_s - got.start_s == pytest.approx(own, rel=1e-6)
    assert program.comm_bytes == {"data": 1 << 24}
    smaller = replace(program, ops=(program.ops[0], replace(program.ops[1], nbytes=1 << 20)))
    assert simulate_timeline([smaller], SmallCosts(), fabric).spans[-1].end_s < got.end_s
