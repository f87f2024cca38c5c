"""Numbers as commands take and tell them: tokens, batches, bytes, energies, and what JSON lacks."""

from __future__ import annotations

import json
import math

import pytest

from simgpt import tables
from simgpt.arguments.tokens import batch_tokens_of, tokens_of
from simgpt.commands.prediction_text import describe_training
from simgpt.options import strict
from simgpt.question import Question
from simgpt.question_rows import QuestionError
from simgpt.step import batch_of, fixed_of
from simulator.economics import Training
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from workload.errors import PlanError
from workload.gpt import find_model


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("7", 7.0), ("5k", 5e3), ("3M", 3e6), ("300B", 3e11), ("1.5T", 1.5e12), (3e11, 3e11)],
)
def test_tokens_may_be_counted_in_thousands_and_up(text: object, tokens: float) -> None:
    assert tokens_of(text) == tokens


@pytest.mark.parametrize("text", ["0", "-3B", "3G", "nan", "inf", "", True])
def test_what_is_no_number_of_tokens_is_refused(text: object) -> None:
    with pytest.raises(PlanError, check=names("300e9", "300B", "1T")):
        tokens_of(text)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        *(("8M", 8_000_000), ("16Mi", 2**24), ("4e6", 4_000_000), ("1.5Ki", 1536)),
        *(("0.3B", 300_000_000), ("2048", 2048), (4096, 4096), (2e6, 2_000_000)),
    ],
)
def test_the_tokens_of_a_step_are_powers_of_1000_or_with_an_i_of_1024(
    text: object, tokens: int
) -> None:
    assert batch_tokens_of(text) == tokens


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *((text, "4Mi") for text in ("0", "1.5", "3G", "8m", "nan", "1e999999999", True)),
        ("1e16", "1,000,000,000,000,000"),
    ],
)
def test_what_is_no_number_of_tokens_of_a_step_is_refused(text: object, named: str) -> None:
    with pytest.raises(PlanError, check=names(named)):
        batch_tokens_of(text)


def test_the_tokens_of_a_sequence_may_be_counted_so_too() -> None:
    words = ("predict", "tiny-1m", "-m", "1x2xH100", "--plan", "dp=2", "--batch", "4", "--json")
    plain = simgpt(*words, "--model-set", "sequence=2048")
    assert plain.status == 0
    assert (
        json.loads(simgpt(*words, "--model-set", "sequence=2Ki").out)["step_s"]
        == (json.loads(plain.out)["step_s"])
    )
    swept = simgpt(*words, "--sweep", "sequence=2048,2Ki")
    assert swept.status == 2
    assert_names(swept.sentence, "sweep.sequence", "2048")
    wrong = simgpt(*words, "--model-set", "sequence=xMi")
    assert wrong.status == 2
    assert_names(wrong.err, "xMi", "4Mi")
    wrong = simgpt(*words, "--model-set", "layers=2k")
    assert wrong.status == 2
    assert_names(wrong.err, "layers", "2k")


def test_a_batch_of_tokens_is_whole_sequences_or_refused_with_the_nearest() -> None:
    gpt = find_model("tiny-1m")
    length = gpt.sequence
    assert batch_of(Question(batch_tokens=3 * length), gpt) == 3
    assert batch_of(Question(batch=5), gpt) == 5
    for tokens, nearest in ((3 * length + 1, 3 * length), (length - 1, length)):
        with pytest.raises(PlanError, check=names(str(length), str(nearest))):
            batch_of(Question(batch_tokens=tokens), gpt)
    with pytest.raises(QuestionError, check=names("batch", "batch_tokens")):
        batch_of(Question(batch=5, batch_tokens=length), gpt)


def test_a_search_keeps_the_data_parallelism_that_it_is_given_unless_it_is_the_rest() -> None:
    assert fixed_of("pp=1,dp=4") == {"pp": 1, "dp": 4}
    assert fixed_of("pp=1,dp=rest") == {"pp": 1}


def test_json_has_null_where_a_number_went_to_infinity() -> None:
    losses = (1.5, math.inf, -math.inf, math.nan)
    assert strict({"losses": losses, "at": {"rank": 3}}) == {
        "losses": [1.5, None, None, None],
        "at": {"rank": 3},
    }


def test_a_gib_is_two_to_the_thirtieth_bytes() -> None:
    assert tables.gib(3 * 2**30) == "3.00 GiB"
    assert tables.gib(2**30 / 10) == "0.10 GiB"
    assert tables.gib(50 * 2**20) == "50.00 MiB"


@pytest.mark.parametrize(("joules", "shown"), [(3.6e10, "10.0 MWh"), (3.6e6, "3.60 MJ")])
def test_a_runs_energy_is_told_in_megawatt_hours_if_it_is_worth_them(
    joules: float, shown: str
) -> None:
    run = Training(tokens=1e9, steps=3, time_s=2 * 86_400, node_s=7200, energy_j=joules)
    told = [line.rsplit("   ", 1)[1] for line in describe_training(run).splitlines()[2:]]
    assert [value.strip() for value in told] == ["3", "2.00 days", "2.00", shown]
