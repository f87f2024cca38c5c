"""`simgpt run` as a trainer: tokenised data, schedules, evaluation, and its log."""

from __future__ import annotations

import importlib.util
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from simgpt.arguments.training import adamw_of
from tests.executor.data.megatron import write_indexed
from tests.messages import assert_names
from tests.simgpt.face import simgpt

WORDS = ("run", "tiny-30k", "--batch", "4", "--timeout", "250", "--no-predict")
KEYS = {"step", "loss", "grad_norm", "lr", "seconds", "peak_bytes", "tokens_per_s", "predicted_s"}


@pytest.fixture
def tokens(tmp_path: Path) -> Callable[[str], str]:
    """Indexed datasets of 40 documents of random bytes."""

    def write(name: str) -> str:
        chance = random.Random(name)
        documents = [[chance.randrange(256) for _ in range(30)] for _ in range(40)]
        return write_indexed(tmp_path / name, documents)

    return write


@pytest.mark.distributed
@pytest.mark.usefixtures("forked_ranks")
def test_a_run_logs_each_step_with_its_rate_its_norm_and_its_evaluation(
    tmp_path: Path, tokens: Callable[[str], str]
) -> None:
    log = tmp_path / "log.jsonl"
    words = ["--steps", "4", "--lr", "1e-2", "--lr-schedule", "wsd", "--warmup-steps", "2"]
    words += ("--data", f"{tokens('a')}=0.7,{tokens('b')}=0.3", "--decay-steps", "1")
    words += ("--eval-data", tokens("c"), "--eval-every", "3", "--eval-batches", "2")
    said = simgpt(*WORDS, *words, "--plan", "dp=2", "--log", str(log), "--json")
    assert said.status == 0, said.err
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [set(line) - KEYS for line in lines] == [set(), set(), {"eval_loss"}, {"eval_loss"}]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["lr"] for line in lines] == pytest.approx([5e-3, 1e-2, 1e-2, 0])
    record = json.loads(said.out)
    assert record["losses"] == [line["loss"] for line in lines]
    assert record["grad_norms"] == [line["grad_norm"] for line in lines]
    evaluations = [{key: line[key] for key in ("step", "eval_loss")} for line in lines[2:]]
    assert record["evaluations"] == evaluations
    for line in lines:
        assert line["tokens_per_s"] == pytest.approx(4 * 16 / line["seconds"])
        assert line["peak_bytes"] > 0 < line["grad_norm"]
    assert said.err.count("   evaluation ") == 2


@pytest.mark.distributed
@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.slow
def test_a_log_of_a_diverged_run_has_the_step_without_a_number(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    words = ["--steps", "3", "--lr", "1e30", "--log", str(log)]
    words += ("--eval-data", "README.md", "--eval-every", "1")
    said = simgpt(*WORDS, *words)
    assert said.status == 6
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[1]["loss"] is None
    assert "eval_loss" not in lines[1]


@pytest.mark.distributed
@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.slow
def test_events_for_tensorboard_have_every_number_of_every_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ("--steps", "3", "--tensorboard", str(tmp_path / "events"))
    said = simgpt(*WORDS, *words, "--json")
    assert said.status == 0, said.err
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert set(events.Tags()["scalars"]) == KEYS - {"step", "predicted_s"}
    losses = events.Scalars("loss")
    assert [each.step for each in losses] == [1, 2, 3]
    assert [each.value for each in losses] == pytest.approx(json.loads(said.out)["losses"])


@pytest.mark.distributed
@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.slow
def test_every_plan_trains_on_the_same_sequences(tokens: Callable[[str], str]) -> None:
    words = ("--steps", "4", "--data", f"0.5 {tokens('a')} 0.5 {tokens('b')}", "--json")
    found = []
    for plan in ("dp=1", "tp=2,dp=2", "pp=2,z=2,mbs=1"):
        said = simgpt(*WORDS, *words, "--plan", f"{plan},precision=fp64")
        assert said.status == 0, said.err
        found.append(json.loads(said.out))
    for other in found[1:]:
        for key in ("losses", "grad_norms"):
            assert other[key] == pytest.approx(found[0][key], rel=1e-9)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--min-lr 1e-4", "--min-lr --lr-schedule cosine linear wsd"),
        ("--decay-steps 3", "--decay-steps --lr-schedule cosine linear wsd"),
        ("--lr-schedule linear --min-lr 1", "--min-lr 1 --lr 0.0003"),
        ("--lr-schedule cosine --warmup-steps 10", "--warmup-steps --steps 10"),
        ("--lr-schedule wsd --warmup-steps 8 --decay-steps 4", "--warmup-steps 8 4 --steps 10"),
        ("--eval-every 3", "--eval-every --eval-data"),
        ("--eval-batches 3", "--eval-batches --eval-data"),
        ("--eval-data README.md", "--eval-data --eval-every"),
        ("--eval-data setup.py --eval-every 1 --eval-batches 1000", "setup.py 16 1000 4 4000"),
        ("--tokenizer /none", "/none"),
        ("--data a=1,b=0", "--data b 0"),
        ("--log same -o same", "-o --log same"),
        ("--log same --trace same", "--log --trace same"),
    ],
)
def test_what_would_have_no_effect_or_cannot_be_read_is_refused(words: str, named: str) -> None:
    said = simgpt(*WORDS, *words.split())
    assert said.status == 2
    assert_names(said.sentence, *named.split())


@pytest.mark.parametrize(
    ("option", "package", "extra"),
    [("--tensorboard", "tensorboard", "tensorboard"), ("--tokenizer", "tokenizers", "data")],
)
def test_without_an_extra_its_option_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, option: str, package: str, extra: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    said = simgpt(*WORDS, option, "there")
    assert said.status == 5
    assert_names(said.sentence, option, package, f"simgpt[{extra}]")


@pytest.mark.parametrize(("clip", "longest"), [(0.0, math.inf), (0.5, 0.5)])
def test_a_clip_of_zero_leaves_gradients_of_every_length(clip: float, longest: float) -> None:
    update = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    assert adamw_of(update | {"clip": clip}).clip == longest


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("sgd", ["--eps", "1e-3"]),
        ("lomo", ["--clip", "2"]),
        ("lomo", ["--beta1", "0.5"]),
        ("mezo", ["--clip", "2"]),
    ],
)
def test_an_option_that_the_plans_rule_has_no_use_for_is_refused(
    rule: str, words: list[str]
) -> None:
    said = simgpt(*WORDS, *words, "--plan", f"dp=1,precision=fp32,optimizer={rule}")
    assert said.status == 2
    assert_names(said.err, words[0], f"optimizer={rule}")
