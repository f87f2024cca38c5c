"""Kernels that send experts' rows themselves: what is left to copy, and what links they reach."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import comb

import pytest

from simulator.engine import core
from simulator.engine.engines import ENGINES, using
from simulator.predict import op_costs, predict
from simulator.ranks.fabric import MachineFabric
from simulator.stacks import load_stack
from simulator.stacks.job import Job, job_of
from simulator.stacks.stack import Stack
from tools import exchange_kernels as table
from topologies.machine import Machine
from topologies.machine_files import load_machine
from workload.exchange.kernels import KernelRates
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.op import PLACES, Op
from workload.transport import ALL_TO_ALL

RACK, HOPPER = load_machine("gb200-nvl72"), load_machine("dgx-h100")
STACK = load_stack("nemo+deepep")
TOKENS, LINK = 4096, 900e9
ROWS = TOKENS * 8 * 0.66742  # of eight ranks' tokens, those with an expert on a rank of eight
QWEN = replace(find_model("qwen3-30b-a3b"), layers=1)


def job(gpt: GPT = QWEN, ranks: int = 8, text: str = "", stack: Stack = STACK) -> Job:
    return job_of(gpt, f"mbs=1,dp={ranks},ep={ranks}{text}", stack, devices=ranks, batch=ranks)


@cache
def ops(columns: int = 2048, ranks: int = 8, machine: Machine = RACK) -> dict[str, Op]:
    """The ops by label of a layer of 128 experts, 8 for each token, with so many columns."""
    asked = job(replace(QWEN, hidden=columns), ranks)
    behaviour = asked.stack.kernels(asked.gpt, asked.plan, machine).behaviour
    return {op.label: op for op in lower(asked.gpt, asked.plan, behaviour=behaviour).ops}


def seconds(label: str, columns: int = 2048, ranks: int = 8, machine: Machine = RACK) -> float:
    """How long an op takes there, alone on the machine."""
    op, asked = ops(columns, ranks, machine)[label], job(replace(QWEN, hidden=columns), ranks)
    fabric = MachineFabric(machine, ranks)
    if op.communicates:
        groups = asked.plan.grid.groups(*op.axes)
        (ring,), _ = fabric.rings([groups], [True])[0]
        return fabric.seconds(op.transport, op.nbytes, ring)
    kernels = asked.stack.kernels(asked.gpt, asked.plan, machine)
    return op_costs(asked.plan, machine, fabric.ranks_per_node, None, kernels).seconds(op)


def test_rows_are_copied_once_where_they_come_and_nowhere_else() -> None:
    found = ops()
    for label in ("dispatch.take_rows", "combine.sum_rows", "combine.grad.take_rows"):
        assert (found[label].nbytes, found[label].launches) == (0, 1)
    moved = 2 * 2048 * (ROWS + TOKENS * 8)
    for label in ("dispatch.sort.sort_rows", "dispatch.grad.unsort.unsort_rows"):
        assert found[label].nbytes == pytest.approx(moved, rel=1e-3)
        assert found[label].attributes[PLACES] == pytest.approx(16 * ROWS, rel=1e-4)


def test_a_permutation_looks_at_all_experts_of_the_rank_for_each_row() -> None:
    launch_s = RACK.device.launch_s
    moved, places = 2 * 2048 * (ROWS + TOKENS * 8) / 8e12, 16 * ROWS
    there = seconds("dispatch.sort.sort_rows") - launch_s
    assert there == pytest.approx(moved + places * 0.171e-9, rel=1e-3)
    back = seconds("combine.unsort.unsort_rows") - launch_s
    assert back == pytest.approx(moved / 0.478 + places * 0.081e-9, rel=1e-3)


@pytest.mark.parametrize(
    ("label", "share"),
    [
        ("dispatch.exchange", 0.743),
        ("combine.grad.exchange", 0.743),
        ("combine.exchange", 0.717),
        ("dispatch.grad.exchange", 0.717),
    ],
)
def test_wide_rows_go_there_and_back_at_the_kernels_shares_of_the_links(
    label: str, share: float
) -> None:
    sent = 2 * 7168 * ROWS * 7 / 8
    launch_s = RACK.software.all_to_all.launch_s if RACK.software.all_to_all else 0.0
    found = seconds(label, 7168) - launch_s
    assert found == pytest.approx(sent / (share * LINK), rel=1e-3)


def test_narrow_rows_are_summed_no_faster_than_one_after_another() -> None:
    """13.4 ns each, of 2,048 columns as of 512, where 7,168 take 19.4 on the links."""
    for columns in (512, 2048):
        assert seconds("combine.exchange", columns) == pytest.approx(13.4e-9 * ROWS, rel=1e-3)
    there = seconds("dispatch.exchange", 512)
    assert there < 0.5 * seconds("combine.exchange", 512)


def test_larger_groups_reach_less_of_their_links() -> None:
    reached = [ops(7168, ranks)["combine.exchange"].transport.within for ranks in (4, 8)]
    reached += [ops(7168, ranks)["combine.exchange"].transport.within for ranks in (16, 64)]
    assert reached == [0.717, 0.717, 0.694, 0.645]


def test_rows_bring_the_probabilities_of_all_experts() -> None:
    found = ops()
    for label in ("dispatch.scores.exchange", "dispatch.scores.grad.exchange"):
        assert found[label].nbytes == pytest.approx(4 * 128 * ROWS, rel=1e-3)
        assert found[label].transport.payload_bytes_per_s == float("inf")


def test_on_two_racks_a_row_brings_the_probabilities_of_the_experts_of_one() -> None:
    """Two racks of 64 ranks have 64 experts each. All 8 of a token are on one of them as often as
    C(64, 8) / C(128, 8) = 0.0031 says, so it has rows on 2 (1 - 0.0031) racks."""
    none = comb(64, 8) / comb(128, 8)
    for label in ("dispatch.scores.exchange", "dispatch.scores.grad.exchange"):
        nbytes = ops(ranks=128)[label].nbytes
        assert nbytes == pytest.approx(4 * 64 * TOKENS * 2 * (1 - none), rel=1e-3)


def test_between_nodes_of_hopper_the_shares_are_those_of_nics() -> None:
    two, four = (ops(7168, ranks, HOPPER)["dispatch.exchange"] for ranks in (16, 32))
    back = ops(7168, 16, HOPPER)["combine.exchange"]
    shares = [op.transport.across for op in (two, four, back)]
    assert shares == [0.717, 0.865, 0.63]
    assert two.transport.within is None
    plain, own = (
        MachineFabric(HOPPER, 16).rings([job(ranks=16).plan.grid.groups(*two.axes)], [True])[0][0],
        MachineFabric(HOPPER, 16),
    )
    library, kernels = (own.seconds(how, 1 << 28, plain[0]) for how in (ALL_TO_ALL, two.transport))
    assert library < kernels


def test_a_plan_that_sends_a_row_for_each_expert_keeps_the_librarys_exchange() -> None:
    asked = job(text=",dispatcher=all_to_all")
    kernels = asked.stack.kernels(asked.gpt, asked.plan, RACK)
    assert kernels.behaviour.exchange_kernels is None
    assert job().stack.kernels(QWEN, job().plan, RACK).behaviour.exchange_kernels is not None


@pytest.mark.skipif(not core.is_built(), reason="built without a C compiler")
def test_both_engines_tell_exchanges_of_one_size_by_their_kernels() -> None:
    """A layer's four, of the same bytes over the same ranks, take as long as each takes alone where
    nothing is beside them, and no less where gradients are summed meanwhile."""
    graphs, found = load_stack("nemo+deepep+fused-experts+graphs=full"), ops().values()
    alone = sum(seconds(op.label) for op in found if op.kind == "all_to_all")
    apart, beside = (job(text=text, stack=graphs) for text in (",overlap=none", ""))
    steps = []
    for engine in ENGINES:
        with using(engine):
            pair = [predict(each.gpt, each.plan, RACK, stack=graphs) for each in (apart, beside)]
        steps.append([step.breakdown_s["ep"] for step in pair])
    assert steps[0] == steps[1]
    assert alone == pytest.approx(steps[0][0], rel=1e-3)
    assert alone < steps[0][1]


def test_a_longer_look_at_experts_is_a_longer_permutation_of_the_same_rows() -> None:
    asked, op = job(), ops()["dispatch.sort.sort_rows"]
    kernels = asked.stack.kernels(asked.gpt, asked.plan, RACK)
    costs, more = op_costs(asked.plan, RACK, 8, None, kernels), 1_000_000
    wider = replace(op, attributes={**op.attributes, PLACES: op.attributes[PLACES] + more})
    assert costs.seconds(wider) - costs.seconds(op) == pytest.approx(0.171e-9 * more)


def test_transformer_engines_permutations_wait_for_blackwells_memory_alone() -> None:
    """0.275 and 0.347 of its bandwidth; on Hopper they are as fast as other kernels."""
    nemo, moved = load_stack("nemo"), 2 * 2048 * TOKENS * 9
    asked = job(stack=nemo)
    for machine, shares in ((RACK, (0.275, 0.347)), (HOPPER, (0.866, 0.866))):
        kernels = nemo.kernels(asked.gpt, asked.plan, machine)
        costs = op_costs(asked.plan, machine, 8, None, kernels)
        program = lower(asked.gpt, asked.plan, behaviour=kernels.behaviour)
        for kind, share in zip(("take_rows", "sum_rows"), shares, strict=True):
            found = next(op for op in program.ops if op.kind == kind)
            own_s = costs.seconds(found) - machine.device.launch_s
            bandwidth = share * machine.device.memory_bytes_per_s
            assert own_s == pytest.approx(moved / bandwidth, rel=0.01)


def test_permutations_of_pytorch_have_no_share_of_transformer_engines() -> None:
    unfused = load_stack("nemo+unfused-permutation")
    assert unfused.kernels(QWEN, job(stack=unfused).plan, RACK).memory_shares == ()


def test_the_numbers_of_the_stacks_are_those_of_the_table() -> None:
    kernels = STACK.own_kernels
    bandwidth = RACK.device.memory_bytes_per_s
    for kind, mover in (("sort_rows", "permute"), ("unsort_rows", "unpermute")):
        place_ns, share = table.fitted(mover, bandwidth)
        assert kernels["place_times"]["b200"][kind] == f"{place_ns:.3f} ns"
        assert kernels["memory_shares"]["b200"][kind] == round(share, 3)
    own = kernels["exchange_kernels"]["b200"]
    assert own["back_row"] == f"{table.row_ns():.1f} ns"
    for way in ("there", "back"):
        shares = table.links_share(way, RACK.node.device_bytes_per_s)
        assert own[way] == {str(ranks): round(share, 3) for ranks, share in shares.items()}
    for stack in (kernels, load_stack("nemo").own_kernels):
        for kind, kernel in (("take_rows", "te_permute"), ("sum_rows", "te_unpermute")):
            (share,) = table.triton_share(kernel, bandwidth)
            assert stack["memory_shares"]["b200"][kind] == round(share, 3)


def test_fitted_permutations_are_near_each_kernel_of_the_table() -> None:
    bandwidth = RACK.device.memory_bytes_per_s
    for kernel in table.MOVERS:
        place_ns, share = table.fitted(kernel, bandwidth)
        for each in table.measured():
            if each.kernel == kernel:
                moved_s = each.nbytes(of_rows=1) / (share * bandwidth)
                found = each.places * place_ns * 1e-9 + moved_s
                assert found == pytest.approx(each.measured / 1e6, rel=0.18)


def test_a_search_bounds_exchanges_by_the_fastest_of_the_kernels() -> None:
    rack, hopper = (STACK.kernel_rates(each) for each in (RACK, HOPPER))
    assert STACK.kernel_rates(load_machine("dgx-b200")) == rack
    assert rack is not None
    assert hopper is not None
    assert rack.best() == [ALL_TO_ALL._replace(within=0.743)]
    assert hopper.best() == [ALL_TO_ALL._replace(across=0.874)]
    assert KernelRates().best() == [ALL_TO_ALL]
    one_way = KernelRates(there={8: 0.3}, there_across={2: 0.6}, back_across={2: 0.7})
    across = ALL_TO_ALL._replace(across=0.7)
    assert one_way.best() == [across._replace(within=0.3), across]
