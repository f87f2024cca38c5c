"""Small questions whose best plan takes less time than what is easily taken for a bound of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from simulator.predict import predict
from simulator.search import judge_of, search
from simulator.search.core import core_spaces, tree_of
from simulator.search.problem import SearchProblem
from simulator.search.space import Order
from simulator.stacks import load_stack
from tests.simulator.search.answers import finds_the_best
from tests.simulator.search.drawn import MACHINES, UNSHRUNK
from topologies.machine_files import load_machine, with_settings
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.overlaps import OVERLAPS

STACKS = ("torchtitan", "nanotron", "fsdp", "megatron-core", "nemo")


def of_sizes(layers: int, hidden: int, heads: int, ffn: int, sequence: int, vocab: int) -> GPT:
    sizes: dict[str, Any] = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn}
    return GPT.of(name="small", sequence=sequence, vocab=vocab, **sizes)


@pytest.mark.parametrize(
    ("name", "hidden", "pp", "data"),
    [("dgx-h100", 2048, 2, 8), pytest.param("dgx-h100", 512, 4, 16, marks=pytest.mark.slow)],
)
def test_a_head_that_gpipe_gathers_again_is_not_gathered_again_with_1f1b(
    name: str, hidden: int, pp: int, data: int
) -> None:
    """Of a large vocabulary, under a stack that has both schedules."""
    gpt = of_sizes(8, hidden, 8, 4 * hidden, 2048, 128256)
    fixed: dict[str, Any] = {"tp": 1, "cp": 1, "zero": 3, "pp": pp, "vpp": 1}
    fixed |= {"order": "tp-dp-pp", "recompute": "full"}
    stack = load_stack("torchtitan")
    problem = SearchProblem(gpt, pp * data, 12 * data, fixed, stack=stack)
    finds_the_best(problem, load_machine(name))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=100, deadline=None, phases=UNSHRUNK)
@given(data=st.data(), stack=st.sampled_from(STACKS), name=st.sampled_from(sorted(MACHINES)))
def test_a_hundred_small_questions_of_pipelines_under_stacks_are_answered_rightly(
    data: st.DataObject, stack: str, name: str
) -> None:
    """Of vocabularies of all sizes, and split backward passes where the stack has them."""

    def one(*of: int) -> int:
        return data.draw(st.sampled_from(of))

    hidden, pp, replicas = one(512, 1024, 2048), one(2, 4), one(4, 8, 16)
    sizes = one(256, 1024, 2048), one(32000, 50257, 128256, 256000)
    gpt = of_sizes(one(4, 8, 12), hidden, 8, 4 * hidden, *sizes)
    fixed: dict[str, Any] = {"tp": 1, "y": 1, "z": 1, "cp": 1, "pp": pp, "vpp": 1}
    fixed |= {"order": "tp-dp-pp", "recompute": data.draw(st.sampled_from(["none", "full"]))}
    batch = replicas * one(8, 12, 16)
    try:
        problem = SearchProblem(gpt, pp * replicas, batch, fixed, stack=load_stack(stack))
        finds_the_best(problem, MACHINES[name])
    except (PlanCannotRunError, PlanError):
        reject()


def test_exchanges_of_heads_and_of_experts_with_as_many_bytes_take_times_of_their_own() -> None:
    """Three experts of a token get what its queries, keys and values are; a dispatcher sends that
    once to each node."""
    gpt = GPT.of(
        name="ulysses",
        layers=8,
        hidden=2048,
        heads=16,
        ffn=1024,
        sequence=16384,
        vocab=1024,
        activation="swiglu",
        positions="rope",
        biases=False,
        experts=64,
        topk=3,
        expert_ffn=256,
        head_width=128,
    )
    fixed: dict[str, Any] = {"tp": 1, "y": 1, "z": 1, "pp": 1, "cp": 16, "mbs": 4}
    fixed |= {"context_kind": "ulysses", "recompute": "none", "order": "tp-dp-pp"}
    fixed |= {"dispatcher": "once_per_node", "zero": 0, "overlap": ()}
    finds_the_best(SearchProblem(gpt, 16, 4, fixed), load_machine("dgx-h100"))


def test_rows_that_are_sent_once_have_no_bound_where_more_may_take_less_time() -> None:
    at = "software.all_to_all.stall."
    stall = {f"{at}chunk_from": "64 KiB", f"{at}chunk_below": "512 KiB", f"{at}hop": "2719 us"}
    machine = with_settings(load_machine("frontier"), stall)
    gpt = of_sizes(2, 512, 8, 1024, 1024, 1024).changed(experts=64, topk=8, expert_ffn=64)
    fixed: dict[str, Any] = {"tp": 8, "y": 1, "z": 1, "pp": 1, "cp": 1, "zero": 0}
    fixed |= {"recompute": "none", "order": "tp-dp-pp", "dispatcher": "once_per_node"}
    fixed |= {"overlap": OVERLAPS, "etp": 0, "sp": False, "ep": 8}
    problem = SearchProblem(gpt, 64, 64, fixed)
    (space,) = spaces = core_spaces(problem, machine)
    tree = tree_of(judge_of(problem, machine, capacity_bytes=2**50), spaces, machine)
    list(tree.bound())
    order = Order("1f1b", 1, OVERLAPS, "tp-dp-pp", "once_per_node")
    assert 0 < tree.lowest <= predict(gpt, space.plan(0, order), machine).step_s * 1e12


def test_more_nodes_may_need_fewer_copies_where_groups_of_experts_fill_them() -> None:
    """Three groups on three nodes: a token whose experts are in one of them needs one copy."""
    gpt = of_sizes(4, 1024, 8, 1024, 2048, 1000).changed(
        positions="rope",
        activation="swiglu",
        biases=False,
        experts=48,
        topk=8,
        expert_ffn=1024,
        router_groups=3,
        router_topk_groups=1,
    )
    fixed: dict[str, Any] = {"tp": 4, "y": 1, "z": 1, "pp": 1, "cp": 1, "zero": 0}
    fixed |= {"recompute": "none", "overlap": (), "sp": False, "mbs": 8}
    fixed |= {"dispatcher": "once_per_node", "etp": 0, "order": "tp-dp-pp"}
    finds_the_best(SearchProblem(gpt, 24, 48, fixed), load_machine("dgx-h100"))


def test_where_kernels_send_one_way_alone_the_library_may_be_faster_the_other(
    tmp_path: Path,
) -> None:
    own = tmp_path / "one-way.toml"
    own.write_text(
        'base = "nemo+deepep"\ntitle = "one way"\nsource = "made up"\n'
        "[kernels.exchange_kernels.h100]\nthere = {8 = 0.3}\n"
    )
    gpt = of_sizes(4, 1024, 8, 1024, 2048, 1024).changed(
        positions="rope",
        activation="swiglu",
        biases=False,
        norm="rmsnorm",
        experts=8,
        topk=8,
        expert_ffn=6144,
    )
    fixed: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "zero": 0, "recompute": "none"}
    fixed |= {"etp": 0, "mbs": 2, "order": "tp-dp-pp"}
    problem = SearchProblem(gpt, 8, 16, fixed, stack=load_stack(str(own)))
    finds_the_best(problem, load_machine("dgx-h100"))


def test_an_order_may_name_context_where_there_is_none() -> None:
    gpt = of_sizes(2, 512, 4, 2048, 1024, 1000)
    fixed: dict[str, Any] = {"tp": 1, "y": 1, "pp": 1, "cp": 1, "mbs": 1}
    fixed |= {"overlap": OVERLAPS, "recompute": "none"}
    machine, found = load_machine("frontier"), []
    for order in ("tp-dp-pp", "tp-dp-pp"):
        *_, answer = search(SearchProblem(gpt, 8, 16, fixed | {"order": order}), machine)
        found.append(answer.found[0].step_s)
    assert found[0] == found[1]


@pytest.mark.slow
def test_kinds_of_layers_that_no_model_has_together_are_passed_over() -> None:
    """A module for further tokens shared by both depths wants windows in all layers or in none."""
    gpt = GPT.of(
        name="window",
        layers=4,
        hidden=256,
        heads=4,
        ffn=1024,
        sequence=1024,
        vocab=1000,
        activation="swiglu",
        positions="rope",
        biases=False,
        window=100,
        mtp_layers=1,
        mtp_shared=True,
        experts=4,
        topk=2,
        expert_ffn=256,
        dense_layers=1,
    )
    fixed: dict[str, Any] = {"y": 1, "z": 1, "pp": 1, "recompute": "none", "overlap": ()}
    fixed |= {"zero": 1, "mbs": 1}
    problem = SearchProblem(gpt, 4, 8, fixed | {"order": "tp-dp-pp"})
    finds_the_best(problem, load_machine("dgx-h100"))
