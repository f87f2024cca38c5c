"""What an answer takes for granted of the software, and what it says of the step otherwise."""

from __future__ import annotations

import pytest

from simulator.explain.assumed import REAL_ROUTING, Granted, granted
from simulator.predict import Prediction, predict
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError
from workload.expert_loads.histogram import Histogram, routed
from workload.gpt import GPT

DENSE = GPT.of(name="d", layers=2, hidden=512, heads=8, ffn=1024, sequence=256, vocab=1024)
EXPERTS = DENSE.changed(experts=8, topk=2, expert_ffn=256)
LARGE = EXPERTS.changed(hidden=4096, heads=32, ffn=8192, sequence=4096, topk=4, expert_ffn=4096)


def step(gpt: GPT, plan: str, stack: str) -> Prediction:
    job = job_of(gpt, plan, load_stack(stack), devices=8, batch=16)
    return predict(job.gpt, job.plan, load_machine("dgx-h100"), stack=job.stack)


def asked(gpt: GPT, plan: str, stack: str = "nemo") -> Granted:
    return granted(step(gpt, plan, stack), lambda name: step(gpt, plan, name))


def words(found: Granted) -> list[str]:
    return [each.words for each in found.otherwise or ()]


def test_small_steps_wait_for_the_host_and_would_not_in_one_graph() -> None:
    found = asked(EXPERTS, "dp=rest,mbs=1")
    assert "no CUDA graphs" in found.assumed
    (graph,) = [each for each in found.otherwise or () if "CUDA graph" in each.words]
    assert graph.low_s == graph.high_s == step(EXPERTS, "dp=rest,mbs=1", "nemo+graphs=full").step_s
    assert graph.low_s < step(EXPERTS, "dp=rest,mbs=1", "nemo").step_s


def test_a_dispatcher_is_named_only_where_tokens_are_exchanged() -> None:
    """Experts that all stand on every rank exchange nothing, and no routing makes a rank wait."""
    alone, split = (asked(LARGE, f"dp=rest,mbs=1{more}") for more in ("", ",ep=8"))
    assert not any("DeepEP" in each or "routing" in each for each in words(alone))
    assert any("DeepEP" in each for each in words(split))
    assert any("all-to-all" in each for each in split.assumed)
    assert not any("all-to-all" in each for each in alone.assumed)
    given = asked(LARGE, "dp=rest,mbs=1,ep=8,dispatcher=once_per_node", "megatron-core")
    assert not any("tokens sent" in each for each in given.assumed)


def test_real_routing_takes_the_published_factors_unless_a_histogram_is_given() -> None:
    plan = "dp=rest,mbs=1,ep=8"
    even = step(EXPERTS, plan, "nemo")
    found = granted(even, lambda name: step(EXPERTS, plan, name))
    (real,) = [each for each in found.otherwise or () if "routing" in each.words]
    assert (real.low_s, real.high_s) == tuple(even.step_s * each for each in REAL_ROUTING)
    known = routed(EXPERTS, Histogram(((9, 1, 1, 1, 1, 1, 1, 1),) * EXPERTS.layers))
    counted = granted(step(known, plan, "nemo"), lambda name: step(known, plan, name))
    assert "balanced routing" not in counted.assumed
    assert not any("routing" in each for each in words(counted))


def test_a_stack_that_cannot_run_the_plan_is_left_out() -> None:
    def refused(name: str) -> Prediction:
        raise PlanCannotRunError(name)

    assert granted(step(DENSE, "dp=rest,mbs=1", "nemo"), refused).otherwise == ()


def test_where_the_steps_are_not_asked_for_none_are_given() -> None:
    found = granted(step(DENSE, "dp=rest,mbs=1", "nemo"), None)
    assert found == Granted(("no CUDA graphs",), None)
    assert found.as_dict() == {"assumed": ["no CUDA graphs"]}


def test_our_own_executor_assumes_nothing_of_others() -> None:
    assert asked(DENSE, "dp=rest,mbs=1", "simgpt") == Granted((), ())


@pytest.mark.parametrize("name", ["nemo", "nemo+deepep", "megatron-core", "torchtitan", "primus"])
def test_every_stack_that_is_named_otherwise_is_one_of_ours(name: str) -> None:
    stack = load_stack(name)
    assert stack.otherwise
    assert all(load_stack(other).name != name for other in stack.otherwise.values())
