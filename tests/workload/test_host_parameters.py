"""Parameters on the host: what device and host hold, what goes between them, and who refuses it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from simulator.costs.analytic import AnalyticCosts
from simulator.goodput.checkpoint import checkpoint_of
from simulator.predict import predict
from simulator.search.problem import SearchProblem, unproved
from simulator.stacks import load_stack
from tests.examples import one_in
from topologies.machine_files import load_machine
from workload.errors import PlanError
from workload.gpt import find_model
from workload.held import Held
from workload.lowering import lower
from workload.op import ROLES
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

LLAMA = replace(find_model("llama-3.1-8b"), sequence=512)
PARAMETERS, SMALL = 8_030_261_248, (2 * 32 + 1) * 4096  # small: norms, which no rank shards
TABLE = 128_256 * 4096
SHARD = (PARAMETERS - SMALL) // 8  # of a rank
IN_LAYERS = SHARD - 2 * TABLE // 8
FSDP = StackBehaviour(held=Held(sharded_masters=True, frees_gradients=True))


def plan_of(words: str = "", *, batch: int = 8, offload: str = "parameters") -> Plan:
    text = f"dp=8,mbs=1,zero=3,offload={offload},{words}".rstrip(",")
    return parse_plan(text, batch=batch)


def held(program: Program) -> dict[str, int]:
    return dict(zip(ROLES, program.levels[:, 0].tolist(), strict=True))


def moved(program: Program, kind: str, purpose: str | None = None) -> int:
    chosen = (op for op in program.ops if op.kind == kind)
    return sum(op.nbytes for op in chosen if purpose is None or op.purpose == purpose)


@pytest.mark.parametrize(("words", "item"), [("gradients=bf16", 2), ("gradients=fp32", 4)])
def test_the_device_holds_what_no_rank_shards_and_the_host_all_else(words: str, item: int) -> None:
    own = held(lower(LLAMA, plan_of(words)))
    assert own["parameters"] == 2 * SMALL
    assert own["gradients"] == item * SMALL
    assert own["optimizer"] == 0
    assert own["host"] == (2 + item + 12) * SHARD + 12 * SMALL


def test_fsdp_has_its_masters_on_the_host_sixteen_bytes_with_gradients() -> None:
    program = lower(LLAMA, plan_of("gradients=bf16"), behaviour=FSDP)
    assert held(program)["host"] == 12 * SHARD + 12 * SMALL
    assert max(use.parts["host"] for use in program.memory) >= 16 * SHARD + 12 * SMALL
    assert moved(program, "to_device", "weight_fetch") == 4 * (2 * SHARD - 2 * TABLE // 8)


@pytest.mark.parametrize(
    ("recompute", "overlap"),
    one_in(4, product(["none", "full"], ["none", "oag", "ors+oag+dp"])),
)
def test_layers_come_twice_a_micro_batch_and_tables_once(recompute: str, overlap: str) -> None:
    """A layer comes for its forward pass, and for its backward pass with what that recomputes."""
    words = f"recompute={recompute},overlap={overlap}"
    for micro_batches in (1, 2):
        program = lower(LLAMA, plan_of(words, batch=8 * micro_batches))
        each = 2 * (2 * IN_LAYERS + 2 * TABLE // 8)
        assert moved(program, "to_device", "weight_fetch") == micro_batches * each


def test_of_each_sum_the_host_has_the_last_and_sends_it_for_the_next_addition() -> None:
    for micro_batches in (1, 2, 3):
        program = lower(LLAMA, plan_of(batch=8 * micro_batches))
        assert moved(program, "to_host", "gradient_send") == micro_batches * 4 * SHARD
        weights = moved(program, "to_device", "weight_fetch")
        norm, small = 4, 2 * SMALL
        sums = moved(program, "to_device") - weights - norm - small
        assert sums == (micro_batches - 1) * 4 * SHARD


def test_fsdp_adds_on_the_host() -> None:
    """Of two numbers that it reads it writes the sum, in fp32."""
    program = lower(LLAMA, plan_of("gradients=bf16", batch=16), behaviour=FSDP)
    assert moved(program, "host_add") == 12 * SHARD
    assert moved(program, "to_host", "gradient_send") == 2 * 4 * SHARD


def test_the_host_reads_gradients_for_the_norm_clips_and_updates_them() -> None:
    program = lower(LLAMA, plan_of())
    assert moved(program, "host_square_sum") == 4 * SHARD + 4
    scales = 34 * 4  # one read for each owner: 32 layers and two tables
    assert moved(program, "host_scale") == 8 * SHARD + scales
    assert moved(program, "host_adamw") == 30 * (SHARD + SMALL)
    narrow = lower(LLAMA, plan_of("gradients=bf16"))
    assert moved(narrow, "host_scale") == 6 * SHARD + scales


def test_each_weight_is_written_where_it_is_and_none_is_copied_back() -> None:
    program = lower(LLAMA, plan_of())
    there = {name for name, own in program.buffers.items() if own.is_parameter} - {
        name for name, own in program.buffers.items() if own.role == "parameters"
    }
    written = [name for op in program.ops if op.kind == "host_adamw" for name in op.writes]
    assert sorted(name for name in written if name in there) == sorted(there)
    assert len(there) == 32 * 4 + 2


def test_a_copy_and_its_gather_are_issued_together_one_linear_ahead() -> None:
    labels = [str(op.part) + "." + op.label for op in lower(LLAMA, plan_of("overlap=oag")).ops]
    fetch, linear = labels.index("l1.qkv.fetch"), labels.index("l0.down.matmul")
    assert labels[fetch : fetch + 2] == ["l1.qkv.fetch", "l1.qkv.gather"]
    assert labels.index("l0.up.matmul") < fetch < linear


def test_all_that_the_host_does_takes_its_rate() -> None:
    costs = AnalyticCosts(load_machine("1x8xA100-40"), devices=8)
    for op in lower(LLAMA, plan_of()).ops:
        if op.stream == "host_adamw" and op.kind not in ("to_device", "to_host"):
            assert costs.seconds(op) == pytest.approx(op.nbytes * 8 / 56e9)


def test_no_more_than_four_sums_are_on_their_way() -> None:
    for overlap in ("none", "oar+ors+oag"):
        program = lower(LLAMA, plan_of(f"overlap={overlap}"))
        alive = most = 0
        for op, freed in zip(program.ops, program.releases, strict=True):
            alive += any(name.endswith(".dw.sum") for name in op.writes) and op.kind != "to_host"
            most = max(most, alive)
            alive -= sum(name.endswith(".dw.sum") for name in freed)
        assert most == 5  # four, and the one that is made while the first of them is awaited


def test_one_device_needs_no_gather_and_the_link_to_its_host_bounds_the_step() -> None:
    gpt = replace(LLAMA, layers=2, sequence=16)
    plan = parse_plan("dp=1,zero=3,mbs=1,offload=parameters,recompute=full", batch=1)
    program = lower(gpt, plan)
    assert not [op for op in program.ops if op.communicates]
    machine = load_machine("1x1xA100-40")
    whole = gpt.parameters - (2 * 2 + 1) * 4096
    fetched = 2 * (2 * (whole - 2 * TABLE) + 2 * TABLE)
    assert moved(program, "to_device", "weight_fetch") == fetched
    found = predict(gpt, plan, machine, stack=load_stack("deepspeed"))
    there = (4 + 8 + 30) * whole / 56e9  # the norm, clipping and the update
    assert found.step_s > fetched / 25e9 + there
    assert found.step_s < 1.2 * (fetched / 25e9 + 4 * whole / 25e9 + there / 0.9)


def test_copies_of_the_model_are_summed_before_gradients_leave() -> None:
    program = lower(LLAMA, plan_of("shard=4"))
    summed = [op for op in program.ops if op.kind == "all_reduce" and op.axes == ("replica",)]
    sent = {name for op in program.ops if op.label.endswith("accumulate") for name in op.reads}
    assert {op.writes[0] for op in summed if op.label.endswith("grad.copies")} == sent


def test_what_a_checkpoint_keeps_is_the_same_wherever_it_is() -> None:
    here = checkpoint_of(LLAMA, plan_of(offload="none"))
    assert checkpoint_of(LLAMA, plan_of()) == here
    assert lower(LLAMA, plan_of()).parameters == lower(LLAMA, plan_of(offload="none")).parameters


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("dp=2,zero=2", "zero=3"),
        ("dp=2", "zero=3"),
        ("pp=2,zero=3", "pp=1"),
        ("dp=2,zero=3,optimizer=sgd", "optimizer=sgd"),
        ("dp=2,zero=3,optimizer=muon", "optimizer=muon"),
        ("dp=2,zero=3,moments=int8", "moments=int8"),
        ("dp=2,zero=3,precision=mxfp8", "mxfp8"),
        ("dp=2,zero=3,overlap=wgrad", "wgrad"),
    ],
)
def test_other_plans_are_refused(words: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        parse_plan(f"{words},mbs=1,offload=parameters", batch=8)


def test_a_search_says_that_it_has_no_bounds_for_it() -> None:
    problem = SearchProblem(LLAMA, devices=2, batch=4, fixed={"offload": "parameters"})
    assert "offload=parameters" in unproved(problem, load_machine("dgx-h100"))
