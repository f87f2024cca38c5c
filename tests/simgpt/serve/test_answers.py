"""The page's answers are those of the command line, number for number and word for word."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from simgpt.commands.serve import changes
from simgpt.commands.serve.answers import answered
from simgpt.commands.serve.asked import MOST_CHARACTERS, asked_of, step_asked, with_plan
from simgpt.commands.serve.changes import Choice, best_neighbours, neighbours, remedies
from simgpt.question_rows import words_of
from simgpt.tables import gib, percent
from tests.examples import one_in
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from workload.descriptions.read import described_model
from workload.plan import Plan

TINY = {"model": "tiny-1m", "machine": "frontier", "devices": "8", "plan": "tp=2,dp=rest"}
LLAMA = {
    "model": "llama-3.1-70b",
    "machine": "dgx-h100",
    "devices": "512",
    "stack": "megatron-core",
    "plan": "tp=4,pp=4,dp=rest,mbs=2",
    "batch": "512",
}
LLAMA_2 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}

# Without a pipeline, and so answered in a tenth of the time.
SMALLER = {**LLAMA, "model": "llama-3.1-8b", "devices": "64", "batch": "64"}

HELP = f"""
from simgpt.cli import main
from simgpt.commands.serve.answers import answered
import sys
answered("predict", {TINY!r})
sys.argv = ["simgpt", "predict", "--help"]
main()
"""


def test_the_waterfall_ends_at_the_mfu_that_the_page_shows() -> None:
    (_, _, _, first), *_, (_, _, _, last) = answered("mfu", SMALLER)["rows"]
    share, _ = answered("predict", SMALLER)["shown"]["mfu"]
    assert (first, last) == ("100.0 %", share)


@pytest.mark.parametrize(
    "question",
    one_in(
        2,
        [
            TINY,
            {**TINY, "batch": "16", "sequence": "64", "stack": "simgpt"},
            {**TINY, "batch_tokens": "2048", "plan": "tp=2,dp=rest,overlap=none"},
            {**TINY, "machine": "2x8xH100,8xNDR"},
            {
                **TINY,
                "model": "llama-3.1-8b",
                "stack": "megatron-core",
                "plan": "tp=8,mbs=2",
            },
        ],
    ),
)
def test_the_command_to_copy_predicts_the_same(question: dict[str, str]) -> None:
    answer = answered("predict", question)
    program, *words = shlex.split(answer["command"])
    assert program == "simgpt"
    said = simgpt(*words, "--json")
    record = json.loads(said.out)
    shown = json.loads(json.dumps(answer["prediction"]))
    assert {key: record[key] for key in shown} == shown
    text = simgpt(*words).out
    for label, value in answer["shown"]["facts"]:
        assert f"{label} " in text
        assert value in text


def test_shares_are_of_the_step_and_of_the_peak_memory() -> None:
    """Neither is as large as the memory of the device."""
    answer = answered("predict", TINY)
    shown, memory = answer["shown"], answer["prediction"]["memory"]
    wholes = {"time": answer["prediction"]["step_s"], "memory": memory["peak_bytes"]}
    assert wholes["memory"] < memory["capacity_bytes"] / 2
    for name, whole in wholes.items():
        values = [value for _, value, _, _ in shown[name]]
        assert sum(values) == pytest.approx(whole)
        assert [share for *_, share in shown[name]] == [percent(each / whole) for each in values]
    assert shown["memory"][0][2] == gib(shown["memory"][0][1])
    assert (shown["peak"], shown["capacity"]) == (
        gib(memory["peak_bytes"]),
        gib(memory["capacity_bytes"]),
    )


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"model": "tiny-1x"}, ["model"]),
        ({"model": "layers=2,hidden=x"}, ["model"]),
        ({"machine": "nowhere"}, ["machine"]),
        ({"machine": "2x8xH100,8xNothing"}, ["machine"]),
        ({"stack": "megatron"}, ["stack"]),
        ({"devices": "0"}, ["devices"]),
        ({"devices": "8 devices"}, ["devices"]),
        ({"devices": "80000"}, ["devices"]),
        ({"batch": "-1"}, ["batch"]),
        ({"batch_tokens": "7"}, ["plan"]),
        ({"batch": "7"}, ["plan", "batch"]),
        ({"sequence": "x"}, ["model", "sequence"]),
        ({"plan": "tp=3,dp=rest"}, ["plan", "tp"]),
        ({"plan": "tp=2,zero=5,dp=rest"}, ["plan", "zero"]),
        ({"plan": "tp=2,dp=rest,mbs=3", "batch": "16"}, ["plan", "mbs"]),
        ({"plan": "tp=2,tp=2"}, ["plan"]),
        ({"placement": "anywhere"}, ["placement"]),
    ],
)
def test_an_error_is_the_command_lines_at_the_field_that_it_is_about(
    change: dict[str, str], fields: list[str]
) -> None:
    question = {**TINY, **change}
    answer = answered("predict", question)
    assert answer["fields"][:2] == fields
    if not any(value.startswith("-") for value in change.values()):
        told: dict[str, Any] = {**question}
        if "sequence" in told:
            told["model_set"] = {"sequence": told.pop("sequence")}
        said = simgpt("predict", *words_of(told)).sentence
        assert_names(said, answer["error"].removeprefix(f"{fields[0]}: "))


@pytest.mark.parametrize(
    "question",
    [
        None,
        [],
        {},
        {"model": "tiny-1m"},
        {**TINY, "output": "/tmp/x"},
        {**TINY, "model": 3},
        {**TINY, "model": ""},
        {**TINY, "model": "--help"},
        {**TINY, "plan": "--trace=x"},
        {**TINY, "machine": "a\nb"},
        {**TINY, "machine": "a" * (MOST_CHARACTERS + 1)},
    ],
)
def test_what_is_no_question_has_an_answer_too(question: Any) -> None:
    for name in ("predict", "best", "fit"):
        answer = answered(name, question)
        assert answer["error"]
        assert "command" not in answer


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"compute": "measured"}, "compute"),
        ({"batch": "8", "batch_tokens": "8Ki"}, "batch"),
        ({"sequence": "64", "model_set": "layers"}, "model_set"),
    ],
)
def test_what_the_page_does_not_answer_is_an_error_at_its_field(
    change: dict[str, str], field: str
) -> None:
    answer = answered("predict", {**TINY, **change})
    assert (answer["fields"], bool(answer["error"])) == ([field], True)


def test_tokens_of_a_training_are_answered() -> None:
    words = words_of({**TINY, "tokens": 1e9})
    answer = answered("predict", {**TINY, "tokens": "1B"})
    assert answer["training"] == json.loads(simgpt("predict", *words, "--json").out)["training"]


def test_neighbours_have_the_stack_of_the_plan_that_was_asked_for() -> None:
    """Which a plan with y would not have on a machine of NVIDIA."""
    question = asked_of({**TINY, "machine": "dgx-h100", "batch": "16"})
    assert step_asked(question).job.stack.name == "megatron-core"
    found = best_neighbours(question)
    assert {choice.question.stack for choice in found.choices} == {"megatron-core"}
    assert all("y" not in choice.change for choice in found.choices)


@pytest.mark.slow
def test_an_answer_leaves_the_help_of_predict_as_it_is() -> None:
    words = [sys.executable, "-c", HELP]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == simgpt("predict", "--help").out


def test_neighbours_differ_in_one_key_by_a_factor_of_two() -> None:
    plan = Plan(tp=2, dp=4, pp=2, batch=8, mbs=2)
    assert list(neighbours(plan)) == [
        *({"tp": 4}, {"tp": 1}, {"y": 2}, {"z": 2}, {"pp": 4}, {"pp": 1}, {"vpp": 2}),
        *({"mbs": 4}, {"mbs": 1}, {"zero": 1}, {"zero": 3}),
        *({"recompute": "selective"}, {"recompute": "full"}, {"sp": True}),
    ]


@pytest.mark.parametrize(("devices", "data"), [("8", "rest"), ("", "4")])
def test_a_changed_plan_keeps_the_devices_where_their_number_is_given(
    devices: str, data: str
) -> None:
    """Of 8 devices 2 * 4 becomes 4 * 2; without their number the plan says how many there are."""
    asked = asked_of({**TINY, "devices": devices, "plan": "tp=2,dp=4", "batch": "16"})
    changed = with_plan(asked, {"tp": 4})
    assert changed.plan == f"tp=4,dp={data}"
    plan = step_asked(changed).predicted().plan
    assert (plan.tp, plan.dp) == ((4, 2) if devices else (4, 4))


def test_the_mildest_remedies_come_first() -> None:
    plan = Plan.of(tp=1, dp=4, batch=8, mbs=2, recompute="selective")
    full = {"recompute": "full"}
    assert list(remedies(plan))[:9] == [
        *(full, {"zero": 1}, {"zero": 3}, full | {"zero": 1}, full | {"zero": 3}),
        *({"mbs": 1}, full | {"mbs": 1}),
        *(full | {"zero": 1, "mbs": 1}, full | {"zero": 3, "mbs": 1}),
    ]
    assert list(remedies(plan))[-1] == full | {"zero": 3, "mbs": 1, "tp": 16}


def test_the_best_neighbours_fit_and_the_fastest_is_first() -> None:
    """The fastest of all, tp=1, fits but for a margin of error."""
    question = {**SMALLER, "plan": "tp=2,dp=rest,mbs=1,sp=true"}
    found = answered("best", question)
    rates = [choice["tokens_per_s"] for choice in found["choices"]]
    assert len(rates) == 5
    assert rates == sorted(rates, reverse=True)
    for choice in found["choices"][::4]:
        words = shlex.split(choice["command"])[1:]
        record = json.loads(simgpt(*words, "--json").out)
        assert record["step_s"] == choice["step_s"]
        assert record["memory"]["verdict"] == "fits"
        assert record["plan"] | choice["change"] == record["plan"] | {
            key: str(value).lower()
            for key, value in record["plan"].items()
            if key in choice["change"]
        }


def test_a_plan_that_does_not_fit_is_made_to_fit_by_the_first_change_that_does() -> None:
    question = {**SMALLER, "plan": "dp=rest,mbs=1"}
    assert answered("predict", question)["prediction"]["memory"]["verdict"] != "fits"
    found = answered("fit", question)
    (choice,) = found["choices"]
    before = step_asked(asked_of(question)).predicted()
    mildest = next(
        change
        for change in remedies(before.plan)
        if step_asked(with_plan(asked_of(question), change)).predicted().memory.is_sure
    )
    assert choice["change"] == {key: str(value).lower() for key, value in mildest.items()}
    for key, value in choice["change"].items():
        assert_names(found["sentence"], f"{key}={value}")
    words = shlex.split(choice["command"])[1:]
    assert simgpt(*words).status == 0


def test_a_plan_that_fits_is_left_as_it_is() -> None:
    found = answered("fit", TINY)
    assert found["choices"] == []
    assert "GiB" not in found["sentence"]


def test_where_nothing_fits_it_says_so() -> None:
    wide = "layers=2,hidden=65536,heads=512,sequence=2048,vocab=50257"
    question = {**LLAMA, "model": wide, "devices": "8", "plan": "dp=rest", "batch": "8"}
    found = answered("fit", question)
    assert found["choices"] == []
    assert_names(found["sentence"], "GiB")  # by how much, which a plan that fits is not told


def test_looking_for_plans_ends_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "LIMIT_S", -1.0)
    found = answered("best", TINY)
    assert found["choices"] == []


def test_a_pasted_config_becomes_a_model_that_the_command_line_takes() -> None:
    answer = answered("config", {"text": json.dumps(LLAMA_2)})
    gpt, preset = described_model(answer["model"]).gpt, described_model("llama-2-7b").gpt
    assert gpt.name == "llama"
    assert (gpt.parameters, gpt.model_flops(1)) == (preset.parameters, preset.model_flops(1))
    assert any("max_position_embeddings" in text for text in answer["remarks"])


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"model_type": "qwen3_next"}', None])
def test_a_text_that_is_no_config_is_refused(text: Any) -> None:
    assert answered("config", {"text": text})["error"]


def test_a_model_of_other_names_is_spelled_as_one_word() -> None:
    fields = {"name": "our model, v2", "layers": 2, "hidden": 64, "heads": 2}
    text = json.dumps({**fields, "sequence": 16, "vocab": 100, "dropout": 0.1})
    model = answered("config", {"text": text})["model"]
    assert model == (
        "name=our-model-v2,layers=2,hidden=64,heads=2,ffn=256,sequence=16,vocab=100,dropout=0.1"
    )
    assert described_model(model).gpt.dropout == 0.1


def test_the_choices_are_what_ships() -> None:
    found = answered("choices", {})
    assert "llama-3.1-70b" in found["models"]
    assert "dgx-h100" in found["machines"]
    assert ["megatron-core", "Megatron-Core"] in found["stacks"]


def test_neighbours_that_fit_worse_are_left_out_and_a_gain_is_in_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, 100 tokens/s; of three neighbours the fastest is less likely to fit, and the next has
    half as many again in a step that is longer."""

    def prediction(rate: float, sure: bool, step_s: float) -> Any:
        memory = SimpleNamespace(fits=True, is_as_sure_as=lambda _: sure, peak_bytes=1)
        return SimpleNamespace(
            plan=Plan(dp=8, batch=8, mbs=1),
            tokens_per_s=rate,
            memory=memory,
            step_s=step_s,
        )

    asked, before = asked_of({**TINY, "stack": "simgpt"}), prediction(100.0, True, 1.0)
    monkeypatch.setattr(changes, "step_asked", lambda _: SimpleNamespace(predicted=lambda: before))
    tried = [(300.0, False, 1.0), (90.0, True, 1.0), (150.0, True, 2.0)]
    each = [Choice(asked, {"tp": 2}, prediction(*words)) for words in tried]
    monkeypatch.setattr(changes, "_tried", lambda *_: (each, ""))
    found = best_neighbours(asked).as_dict()["choices"]
    assert [choice["tokens_per_s"] for choice in found] == [150.0, 90.0]
    assert [choice["gain"] for choice in found] == [
        percent(0.5, sign=True),
        percent(-0.1, sign=True),
    ]
