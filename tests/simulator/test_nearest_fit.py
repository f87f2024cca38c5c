"""The nearest setting of a plan that fits, in a world where what fits is known by hand."""

from __future__ import annotations

import pytest

from simulator.explain import nearest_fit
from simulator.explain.nearest_fit import does_fit, fitting_change, nearest_changes, text_of_change
from simulator.stacks import load_stack
from simulator.stacks.job import Job, job_of
from topologies.machine_files import load_machine, with_settings
from workload.gpt import find_model

GPT_5B = find_model("gpt-5b")
H100 = load_machine("dgx-h100")


pytestmark = pytest.mark.usefixtures("exact_peaks")


def job(text: str, stack: str = "megatron-core") -> Job:
    return job_of(GPT_5B, f"dp=rest,{text}", load_stack(stack), devices=8, batch=64)


def texts(asked: Job) -> list[list[str]]:
    return [[text_of_change(change) for change in row] for row in nearest_changes(asked)]


def test_changes_come_from_the_mildest_to_the_strongest() -> None:
    whole = [*(f"recompute=full:{count}" for count in range(1, 24)), "recompute=full"]
    assert texts(job("mbs=2,zero=0")) == [
        ["recompute=selective"],
        whole,
        ["zero=1"],
        ["zero=1,recompute=selective"],
        [f"zero=1,{word}" for word in whole],
    ]
    assert texts(job("mbs=2,zero=0,recompute=full")) == [["zero=1"]]
    assert texts(job("mbs=2,recompute=selective")) == [whole]
    assert texts(job("mbs=2,recompute=full:21")) == [whole[21:]]


def test_selective_recomputation_is_the_stacks_own() -> None:
    assert texts(job("mbs=1", "torchtitan"))[0] == ["recompute=per_op"]


def test_what_a_stack_holds_besides_counts() -> None:
    """2 bytes a parameter and 14 over 8 ranks are 18.9 GB of gpt-5b, copies of gradients 2.5."""
    plan = "zero=2,mbs=1,gradients=bf16,recompute=full"
    fits = {
        stack: does_fit(job(plan, stack), with_settings(H100, {"device.memory": "23 GB"}))
        for stack in ("other", "deepspeed")
    }
    assert fits == {"other": True, "deepspeed": False}


def test_a_plan_that_fits_is_left_as_it_is() -> None:
    assert fitting_change(job("mbs=1"), H100) == {}


def test_the_fewest_layers_that_are_enough_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(other: Job, _: object) -> bool:
        first, _, count = other.plan.training.recompute.partition(":")
        return first == "full" and int(count or 24) >= 11

    monkeypatch.setattr(nearest_fit, "does_fit", fits)
    assert fitting_change(job("mbs=2"), H100) == {"recompute": "full:11"}


def test_where_nothing_is_enough_there_is_no_change() -> None:
    small = with_settings(H100, {"device.memory": "8 GiB"})
    assert fitting_change(job("mbs=2"), small) is None


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "pp"), [("nemo", 1), ("nemo", 2), ("megatron-core", 2)])
def test_what_fp8_keeps_in_fewer_bytes_counts(stack: str, pp: int) -> None:
    """There is a device into which a plan fits with precision=fp8 alone."""
    text = f"pp={pp},mbs=4"
    verdicts = []
    for gib in range(40, 140):
        machine = with_settings(H100, {"device.memory": f"{gib} GiB"})
        found = tuple(
            does_fit(job(f"{text}{more}", stack), machine) for more in ("", ",precision=fp8")
        )
        verdicts.append(found)
    assert (False, True) in verdicts
    assert (True, False) not in verdicts
