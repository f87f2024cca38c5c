"""Plans of a space that cannot be predicted, and values that no plan of a stack has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator import limits
from simulator.search import search
from simulator.search.baselines import exhaustive
from simulator.search.enough_devices import enough_devices
from simulator.search.problem import SearchProblem
from simulator.stacks import load_stack
from tests.messages import assert_names, names
from tests.simulator.search.answers import proved
from tests.simulator.search.measured_tables import measured
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError
from workload.gpt import GPT

DENSE = GPT.of(
    name="dense",
    layers=2,
    hidden=512,
    heads=8,
    ffn=1024,
    sequence=1024,
    vocab=1024,
    norm="rmsnorm",
    activation="swiglu",
    positions="rope",
    biases=False,
)
FIXED: dict[str, Any] = {"pp": 2, "tp": 1, "mbs": 1, "order": "tp-dp-pp"}
NODE = load_machine("dgx-h100")


@pytest.mark.slow
def test_what_a_stack_does_not_run_together_is_passed_over_with_the_reason(tmp_path: Path) -> None:
    """The search answers with what runs, as trying all plans does."""
    own = tmp_path / "own.toml"
    own.write_text(
        'base = "torchtitan"\ntitle = "t"\nsource = "made up"\n'
        '[can]\napart = [{schedule = "1f1b", recompute = "full"}]\n'
    )
    fixed = FIXED | {"cp": 1, "vpp": 1}
    problem = SearchProblem(DENSE, 8, 64, fixed, stack=load_stack(str(own)))
    tree = proved(problem, NODE)
    *_, tried = exhaustive(problem, NODE, top=12)
    assert tree.best is not None
    assert tree.best.step_s == tried.found[0].step_s
    assert_names(tried.reason, "schedule=1f1b", "recompute=full")
    assert {("gpipe", "full"), ("1f1b", "none")} <= {
        (each.plan.pipeline.schedule, each.plan.training.recompute) for each in tried.found
    }


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"fixed": {"dispatcher": "hierarchical"}}, marks=pytest.mark.slow),
        {"several": {"dispatcher": ("usual", "hierarchical")}},
    ],
)
def test_all_to_alls_in_steps_that_were_not_measured_are_passed_over(asked: dict[str, Any]) -> None:
    """Inside a node there are no steps, and those plans have times."""
    experts = DENSE.changed(experts=8, topk=2, expert_ffn=1024)
    fixed = FIXED | {"pp": 1, "overlap": (), "zero": 0, "recompute": "none", "y": 1, "z": 1}
    own = {**asked, "fixed": fixed | asked.get("fixed", {})}
    problem = SearchProblem(experts, 8, 16, **own)
    machine = measured(all_to_all=(2, 4, 8))
    *_, tried = exhaustive(problem, machine, top=20)
    *_, found = search(problem, machine)
    assert found.is_optimal
    assert found.found[0].step_s <= tried.found[0].step_s
    tree = proved(problem, machine)
    assert tree.tally.unpredicted <= tried.unpredicted != 0
    assert_names(tried.reason, "perlmutter", "dispatcher=hierarchical")
    assert tree.best is not None
    assert tree.best.step_s == tried.found[0].step_s


@pytest.mark.slow
def test_plans_of_too_many_slots_to_simulate_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPipe's with few micro-batches are found; of more each would be simulated, though the bound
    of these is lower, as layers this wide gain little from larger micro-batches."""
    monkeypatch.setattr(limits, "MOST_SLOTS", 20)
    fixed = {key: FIXED[key] for key in ("pp", "tp", "order")} | {"schedule": "gpipe"}
    fixed |= {"recompute": "none", "overlap": (), "zero": 0, "vpp": 1}
    gpt = DENSE.changed(hidden=4096, heads=64, ffn=16384, sequence=4096)
    tree = proved(SearchProblem(gpt, 8, 64, fixed), NODE)
    assert tree.tally.unpredicted
    assert_names(tree.tally.reason, "2", "20")
    assert tree.best is not None
    assert tree.best.plan.micro_batches <= 10


@pytest.mark.parametrize(
    ("stack", "fixed", "named"),
    [
        ("nemo", {"schedule": "gpipe"}, ("nemo", "schedule=gpipe")),
        ("nanotron-zero1", {"zero": 2}, ("nanotron-zero1", "zero=2")),
    ],
)
def test_a_value_that_no_plan_of_a_stack_has_is_refused_before_the_search(
    stack: str, fixed: dict[str, Any], named: tuple[str, ...]
) -> None:
    problem = SearchProblem(DENSE, 4, 16, {"tp": 1, **fixed}, stack=load_stack(stack))
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        list(search(problem, NODE))


@pytest.mark.usefixtures("exact_peaks")
def test_where_running_layers_again_needs_more_memory_the_other_plans_say_what_is_enough() -> None:
    """One wide layer: on four devices it fits without recomputation alone."""
    sizes: dict[str, Any] = {"hidden": 29696, "heads": 64, "ffn": 4 * 29696}
    wide = GPT.of(name="wide", layers=1, sequence=512, vocab=1000, **sizes)
    fixed = {"tp": 1, "y": 1, "z": 1, "pp": 1}
    machine = load_machine("frontier")
    assert enough_devices(SearchProblem(wide, 2, 8, fixed), machine) == 4
    *_, found = search(SearchProblem(wide, 4, 8, fixed), machine)
    assert [each.plan.training.recompute for each in found.found] == ["none"]
