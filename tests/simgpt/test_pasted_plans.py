"""A plan that an answer prints, or has in its JSON, is taken wherever a plan is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from simgpt.arguments.searched import searched_of
from simgpt.step import plan_table
from simulator.search import SearchProblem
from simulator.search.baselines import every_plan
from simulator.search.space import spaces_of
from simulator.stacks import load_stack, stack_names
from simulator.stacks.job import job_of
from tests.examples import few_and_many, one_in
from tests.messages import names
from tests.simgpt.frameworks.asked import Asked, exported
from topologies.errors import SimgptError
from workload.errors import PlanError
from workload.gpt import find_model
from workload.plan_text import parse_plan, plan_words

DENSE = replace(find_model("llama-3.1-8b"), sequence=1024)
EXPERTS = replace(find_model("qwen3-30b-a3b"), sequence=1024)
EXPORTERS = {"megatron-core": "megatron", "nemo": "megatron-bridge", "torchtitan": "torchtitan"}
UNEVEN = {"megatron-lm-zero-bubble", "nanotron", "nanotron-zero1"}  # whose stages a search has not
SEARCHED = [name for name in stack_names() if name not in UNEVEN]
GENERATED = settings(phases=[Phase.generate], suppress_health_check=list(HealthCheck))
WORDS = {
    "tp": st.sampled_from([1, 2]),
    "pp": st.sampled_from([1, 2]),
    "mbs": st.sampled_from([1, 2]),
    "zero": st.sampled_from([None, 0, 1, 2, 3]),
    "recompute": st.sampled_from([None, "none", "full"]),
    "overlap": st.sampled_from([None, None, "none", "dp", "all"]),
    "vpp": st.sampled_from([None, 2]),
    "sp": st.sampled_from([None, True]),
}


def drawn(data: st.DataObject, stack: str) -> Any:
    """A job of a plan that the stack runs, or None where it runs none of the drawn words."""
    words = {key: data.draw(values, label=key) for key, values in WORDS.items()}
    given = {key: value for key, value in words.items() if value is not None} | {"dp": "rest"}
    if given["pp"] == 1:
        given.pop("vpp", None)
    try:
        job = job_of(DENSE, given, load_stack(stack), devices=8, batch=16)
        load_stack(stack).check(job.plan, job.gpt)
    except SimgptError:
        return None
    return job


@pytest.mark.parametrize("stack", one_in(2, stack_names()))
@few_and_many(2, 8, GENERATED, data=st.data())
def test_a_printed_plan_is_the_same_plan(stack: str, data: st.DataObject) -> None:
    if (job := drawn(data, stack)) is None:
        return
    own = load_stack(stack)
    for pasted in (own.text(job.plan), job.plan.as_dict()):
        assert job_of(DENSE, pasted, own, devices=8, batch=16).plan == job.plan
    if stack in SEARCHED:
        for pasted in (own.text(job.plan), job.plan.as_dict()):
            fixed = plan_words(pasted) if isinstance(pasted, dict) else searched_of(pasted, own)[0]
            problem = SearchProblem(DENSE, 8, 16, _read(fixed), stack=own)
            plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
            texts = {said(own.text(plan)) for plan in plans}
            assert said(own.text(job.plan)) in texts
    if stack in EXPORTERS:
        for pasted in (own.text(job.plan), job.plan.as_dict()):
            assert exported(Asked(DENSE, pasted, 8, 16), EXPORTERS[stack], stack).settings


def said(text: str) -> str:
    """A plan's text without the dispatcher of a model without experts."""
    return re.sub(r",dispatcher=\w+", "", text)


def _read(fixed: dict[str, Any]) -> dict[str, Any]:
    """The fields as a search keeps them."""
    return {key: tuple(each) if isinstance(each, list) else each for key, each in fixed.items()}


def test_the_answer_of_a_search_is_a_plans_file(tmp_path: Path) -> None:
    plan = job_of(DENSE, "pp=2,dp=4,mbs=1", load_stack("nemo"), batch=16).plan
    path = tmp_path / "best.json"
    answer = {"unpredicted_reason": None, "plans": [{"plan": plan.as_dict(), "step_s": 1.0}]}
    for written in (answer, answer["plans"][0]):  # type: ignore[index]
        path.write_text(json.dumps(written))
        table = plan_table(str(path))
        assert job_of(DENSE, table, load_stack("nemo"), batch=16).plan == plan
    path.write_text(json.dumps({"plans": []}))
    with pytest.raises(PlanError, check=names("search")):
        plan_table(str(path))


@pytest.mark.parametrize("words", ["zero=3,hsdp=4", "hsdp=4,shard=4", "fsdp=true,zero=3,hsdp=4"])
def test_words_that_agree_may_stand_together(words: str) -> None:
    assert job_of(DENSE, f"dp=8,{words}", load_stack("simgpt"), batch=8).plan.shard == 4


@pytest.mark.parametrize(
    ("words", "both"),
    [
        ("zero=2,hsdp=64", ("zero=2", "hsdp=64")),
        ("fsdp=false,zero=3", ("fsdp=false", "zero=3")),
        ("x=2,tp=4", ("x=2", "tp=4")),
    ],
)
def test_words_that_contradict_each_other_are_named_both(words: str, both: tuple[str, str]) -> None:
    with pytest.raises(PlanError) as found:
        plan_words(words)
    assert [each for each in both if each not in str(found.value)] == []


def test_all_is_what_stack_model_and_plan_overlap_together() -> None:
    """Experts' all-to-alls cannot run beside another micro-batch and the MLP for all tokens, which
    this model has not; nothing is sent over x or between stages."""
    words = "ep=16,dp=16,mbs=1,zero=1,overlap=all+a2a"
    job = job_of(EXPERTS, words, load_stack("nemo+deepep"), batch=1024)
    assert job.plan.training.overlap == ("a2a", "dp")
    assert any("overlap=all+a2a is overlap=a2a+dp" in each for each in job.remarks)


def test_a_layout_is_the_layers_of_chunks() -> None:
    """32 layers: three and the embedding, then 14 chunks of two, then the last one and the loss."""
    words = "pp=4,dp=2,mbs=1,layout=Et*3|(tt|)*14tL"
    plan = job_of(DENSE, words, load_stack("megatron-core"), batch=16).plan
    assert (plan.pipeline.stage_layers, plan.vpp) == ((3, *[2] * 14, 1), 4)
    for wrong, why in (("layout=tE|t", "E"), ("layout=Et|tmL", "mtp_layers=0")):
        with pytest.raises(SimgptError, check=names(why)):
            job_of(DENSE, f"pp=2,dp=4,mbs=1,{wrong}", load_stack("megatron-core"), batch=16)


@pytest.mark.parametrize(("name", "text"), [("a.toml", "offload_share = {}"), ("a.json", None)])
@pytest.mark.parametrize("share", [0.25, 1, 1.0, 0.00001])
def test_a_share_in_a_plans_file_is_a_number(
    tmp_path: Path, name: str, text: str | None, share: float
) -> None:
    plan = {"dp": 8, "mbs": 1, "zero": 1, "offload": "update"}
    told = "".join(f"{key} = {json.dumps(value)}\n" for key, value in plan.items())
    told += (text or "").format(share)
    path = tmp_path / name
    path.write_text(told if text else json.dumps({**plan, "offload_share": share}))
    assert parse_plan(plan_table(str(path)), devices=8, batch=8).training.offload_share == share


@pytest.mark.parametrize("value", ["true", "1.5", '"half"', "[0.5]"])
def test_what_is_no_share_in_a_plans_file_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"data": 8, "offload": "update", "offload_share": {value}}}')
    with pytest.raises(PlanError, match="offload_share"):
        parse_plan(plan_table(str(path)), devices=8, batch=8)
