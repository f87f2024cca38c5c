"""One question in every interface: a field that one of them reads, all of them read."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simgpt as api
from simgpt.api import asking
from simgpt.api.words import option_words
from simgpt.cli import COMMANDS, cli
from simgpt.commands.serve.answers import answered
from simgpt.commands.serve.asked import asked_of
from simgpt.question import MACHINE_TABLES, Question
from simgpt.question_options import fields_asked, fields_unheeded
from simgpt.question_rows import ROWS, QuestionError
from simgpt.studies.study import study_of
from tests.messages import assert_names, names
from tests.simgpt.face import Said, simgpt
from topologies.files.printable import toml_text
from topologies.hardware.interconnect import KINDS
from topologies.machine import known_keys

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
# Of each field another value than its default, as Python has it.
VALUES: dict[str, Any] = {
    "model": "gpt-5b",
    "machine": "dgx-h100",
    "devices": 16,
    "batch": 32,
    "batch_tokens": 2**22,
    "plan": "tp=2,dp=rest",
    "placement": "contiguous",
    "tokens": 3e11,
    "stack": "torchtitan",
    "routing": "routing.json",
    "compute": "profile",
    "model_set": {"sequence": 4096},
    "set": {"device.launch": "9 us"},
}
BASE = {"model": "tiny-1m", "machine": "frontier"}


def command_of(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def test_every_field_has_a_row_and_a_value_here() -> None:
    assert {each.name for each in fields(Question)} == {*ROWS} == {*VALUES}
    usual = Question()
    assert [name for name, value in VALUES.items() if getattr(usual, name) == value] == []


def of_words(given: Mapping[str, Any]) -> Question:
    return Question.from_words(Question.of(**given).as_words())


def of_toml(given: Mapping[str, Any]) -> Question:
    text = toml_text(Question.of(**given).as_toml())
    return Question.from_toml(tomllib.loads(text))


def of_json(given: Mapping[str, Any]) -> Question:
    return Question.from_json(json.loads(json.dumps(Question.of(**given).as_json())))


def of_study(given: Mapping[str, Any]) -> Question:
    """A point of a study, in whose file the keys of the machine and the model are set."""
    asked = study_of(Question.of(**given).as_toml(), title="one point", folder=Path())
    (point,) = asked.points()
    return asked.question_of(point)


def of_page(given: Mapping[str, Any]) -> Question:
    return asked_of(page_of(given))


def page_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the served page is sent: texts."""
    return {
        name: {key: str(each) for key, each in value.items()}
        if isinstance(value, dict)
        else str(value)
        for name, value in given.items()
    }


def of_python(given: Mapping[str, Any]) -> Question:
    """What `simgpt.predict` makes of its keywords."""
    told, others = asking.apart(command_of("predict"), given)
    assert others == {}
    return Question(**told)


INTERFACES: Mapping[str, Callable[[Mapping[str, Any]], Question]] = {
    "words": of_words,
    "TOML": of_toml,
    "JSON": of_json,
    "study": of_study,
    "page": of_page,
    "Python": of_python,
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", VALUES)
def test_every_interface_reads_every_field(name: str, interface: str) -> None:
    given = BASE | {name: VALUES[name]}
    assert INTERFACES[interface](given) == Question(**given)


def test_an_answer_is_a_question_again(tmp_path: Path) -> None:
    """With its plan filled in; so are a search's best plan and a row of a sweep."""
    routing = tmp_path / "routing.toml"
    routing.write_text("tokens = [4, 2, 1, 1]\n", encoding="utf-8")
    asked = Question.of(
        model="tiny-mixtral-2m",
        machine="dgx-h100",
        devices=8,
        batch=16,
        plan="ep=4,dp=rest",
        placement="contiguous",
        tokens="1B",
        stack="simgpt",
        routing=str(routing),
        compute="profile",
        model_set={"sequence": 64},
        set={"device.launch": "9 us"},
    )
    answer = api.predict(asked)
    found = Question.from_json(answer.to_dict())
    filled = {"plan": answer.plan}
    assert found == asked.changed(**filled)
    assert api.predict(found).step_s == answer.step_s
    rows = api.predict(asked.changed(tokens=None), sweep={"zero": [0, 1]}).to_dict()["rows"]
    plans = {Question.from_json(row).plan for row in rows}
    assert plans == {"ep=4,dp=rest,zero=0", "ep=4,dp=rest,zero=1"}


FILES = {"routing": "tokens = [4, 2, 1, 1]\n"}
# Of each field a value that tiny-mixtral-2m takes on a DGX; those of batch and batch_tokens differ.
ANSWERABLE: dict[str, Any] = VALUES | {
    "model": "tiny-mixtral-2m",
    "batch_tokens": 2**11,
    "devices": 8,
    "plan": "ep=4,dp=rest",
    "stack": "simgpt",
    "routing": "routing.toml",
    "model_set": {"sequence": 64},
}
SMALL: dict[str, Any] = {
    "model": "tiny-mixtral-2m",
    "machine": "dgx-h100",
    "devices": 4,
    "batch": 16,
}


@pytest.mark.parametrize("name", ANSWERABLE)
def test_an_answer_has_every_field_of_its_question(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its JSON, which a file of `--question` may have, and in the page's command line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "routing.toml").write_text(FILES["routing"], encoding="utf-8")
    given = {**SMALL, "stack": "simgpt", name: ANSWERABLE[name]}
    given |= {"batch": None} if name == "batch_tokens" else {}
    asked = Question.of(**given)
    answer = api.predict(asked)
    found = Question.from_json(answer.to_dict())
    if name == "batch_tokens":  # an answer has the sequences that they are
        assert found.batch == ANSWERABLE[name] // 128
    elif name != "plan":  # which is filled in
        assert getattr(found, name) == getattr(asked, name)
    Path("answer.json").write_text(json.dumps(answer.to_dict()), encoding="utf-8")
    again = json.loads(simgpt("predict", "--question", "answer.json", "--json").out)
    assert again["step_s"] == answer.step_s
    assert Question.from_json(again) == found


def shown_commands() -> Iterator[str]:
    """The command lines that README and docs show, in blocks or marked as output."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        yield from re.findall(
            r"^(?:\s{4}|\$ |<!-- [a-z ]+: )(simgpt .*?)(?: -->)?$", text, re.MULTILINE
        )


def asking_commands() -> list[str]:
    """Those of them that ask a question of a step, each once."""
    found = []
    for line in dict.fromkeys(shown_commands()):
        words = shlex.split(line, comments=True)
        own = len(words) > 1 and words[1] in COMMANDS and "…" not in line
        own = own and "--question" not in words  # whose file is not there
        if own and fields_asked(command_of(words[1])) and "|" not in words:
            found.append(shlex.join(words))
    return found


def test_the_docs_show_many_commands_that_ask() -> None:
    assert len(asking_commands()) > 60


@pytest.mark.parametrize("line", asking_commands())
def test_a_command_line_of_the_docs_is_the_same_through_a_question_and_its_json(line: str) -> None:
    """Words, question, JSON, question, words: the last are parsed as the first were."""
    _, name, *words = shlex.split(line)
    command = command_of(name)
    first = parsed(command, words)
    question = Question.from_json(json.loads(json.dumps(first.question.as_json())))
    assert question == first.question
    without = [each for each in ROWS if each not in fields_asked(command)]
    asked = question.as_words(without=without)
    again = parsed(command, [*first.others[0], *asked, *first.others[1]])
    assert again.question == question
    assert again.values == first.values


class Parsed:
    """What a command makes of words: the question, the values of all options, and the words of
    those that are not the question's, arguments and options."""

    def __init__(self, command: click.Command, words: list[str]) -> None:
        self.values: dict[str, Any] = {}
        told: list[Question] = []
        context = click.Context(command, info_name=str(command.name))
        found, _, _ = command.make_parser(context).parse_args(list(words))
        own = [p for p in command.params if p.name in found and p.name not in fields_asked(command)]
        own = [p for p in own if p.name != "segment"]
        arguments = [w for p in own if isinstance(p, click.Argument) for w in words_of(p, found)]
        options = [w for p in own if not isinstance(p, click.Argument) for w in words_of(p, found)]
        self.others = (arguments, options)
        with command.make_context(str(command.name), list(words)) as context:
            values = dict(context.params)
        asked = {name: values.pop(name) for name in fields_asked(command)}
        self.values = values
        told = [Question(**{name: each for name, each in asked.items() if each is not None})]
        (self.question,) = told


def words_of(param: click.Parameter, found: Mapping[str, Any]) -> list[str]:
    value = found[str(param.name)]
    if isinstance(value, tuple):
        value = list(value)
    return (
        []
        if value is None or not isinstance(value, str | list | bool)
        else option_words(param, value)
    )


def parsed(command: click.Command, words: list[str]) -> Parsed:
    return Parsed(command, words)


ANSWERED = ("tiny-1m", "-m", "frontier", "-n", "16", "--stack", "simgpt", "--set", "nodes=64")


def test_a_command_begins_with_the_question_of_a_file(tmp_path: Path) -> None:
    """Of an answer in JSON, and of an anchor; words of the command stand over it."""
    kept = str(tmp_path / "answer.json")
    assert simgpt("predict", *ANSWERED, "--batch", "32", "-o", kept).status == 0
    again = json.loads(simgpt("predict", "--question", kept, "--json").out)
    assert again["step_s"] == json.loads(Path(kept).read_text(encoding="utf-8"))["step_s"]
    more = ("--batch-tokens", "8Ki", "--set", "device.launch=9 us")
    words = ("why", "--question", kept, *more, "--json")
    changed = json.loads(simgpt(*words).out)
    assert changed["plan"]["batch"] == 64
    assert changed["settings"] == {"nodes": "64", "device.launch": "9 us"}
    anchor = tmp_path / "anchor.toml"
    anchor.write_text(
        'model = "tiny-1m"\nmachine = "frontier"\ndevices = 16\nbatch = 32\nset = {zero = 1}\n'
        'measured = {step = "1 s"}\n',
        encoding="utf-8",
    )
    of_anchor = json.loads(simgpt("predict", "--question", str(anchor), "--json").out)
    assert of_anchor["plan"]["zero"] == 1
    said = simgpt("predict", "--question", str(tmp_path / "a.yaml"))
    assert (said.status, said.sentence.count("a.yaml")) == (2, 1)


@pytest.mark.parametrize("name", [name for name in VALUES if getattr(Question(), name)])
def test_a_default_that_is_named_stands_over_the_question_that_is_begun_with(
    name: str, tmp_path: Path
) -> None:
    """As `placement="scheduler"` after a question with another placement: on the command line, in
    Python and in `changed`."""
    usual = getattr(Question(), name)
    begun = Question.of(**BASE | {name: VALUES[name]})
    wanted = Question.of(**BASE)
    assert begun.changed(**{name: usual}) == wanted
    told, _ = asking.apart(command_of("predict"), {"model": begun, name: usual})
    assert Question(**told) == wanted
    kept = tmp_path / "question.json"
    kept.write_text(json.dumps(begun.as_json()), encoding="utf-8")
    words = [*ROWS[name].words(usual), "--question", str(kept)]
    assert parsed(command_of("predict"), words).question == wanted


@pytest.mark.parametrize("name", VALUES)
def test_a_command_refuses_a_field_that_it_does_not_ask_for(name: str) -> None:
    """Unless its answer does not depend on it: then the question passes without the field."""
    question = Question.of(**BASE | {name: VALUES[name]})
    for command in (command_of(each) for each in ("predict", "why", "export", "sbatch", "search")):
        if name in fields_asked(command):
            told, _ = asking.apart(command, {"model": question})
            assert told[name] == VALUES[name]
        elif name in fields_unheeded(command):
            assert name not in asking.apart(command, {"model": question})[0]
        else:
            with pytest.raises(QuestionError, check=names(name, str(command.name))):
                asking.apart(command, {"model": question})


def test_a_segment_is_a_key_of_the_machine_in_every_interface() -> None:
    wanted = Question.of(**BASE, set={"node.segment": "4"})
    assert Question.from_words(["tiny-1m", "-m", "frontier", "--segment", "4"]) == wanted
    assert Question.of(**BASE, segment=4) == wanted
    assert Question.from_toml({**BASE, "set": {"segment": 4}}).set == {"node.segment": 4}
    told, _ = asking.apart(command_of("predict"), {**BASE, "segment": 4})
    assert Question(**told) == wanted
    assert Question.of(**BASE).changed(segment=4) == wanted
    for wrong in (0, "x", 1.5):
        with pytest.raises(QuestionError, check=names("segment")):
            Question.of(**BASE, segment=wrong)


def test_a_batch_is_given_once() -> None:
    twice = Question.of(**SMALL, batch_tokens="2Ki")
    with pytest.raises(api.SimgptError, check=names("batch", "batch_tokens")):
        api.predict(twice)
    said = simgpt("predict", *twice.as_words())
    assert said.status == 2
    assert_names(said.sentence, "--batch", "--batch-tokens")


def test_python_compares_what_the_command_compares(tmp_path: Path) -> None:
    """With defaults that are named: they stand over what the log's arguments say, alike."""
    log = tmp_path / "steps.jsonl"
    steps = [json.dumps({"step": each, "step_s": 0.5}) for each in range(20)]
    log.write_text("\n".join(steps), encoding="utf-8")
    named: dict[str, Any] = {
        **SMALL,
        "stack": "simgpt",
        "plan": "dp=rest",
        "placement": "scheduler",
    }
    question = Question.of(**named)
    line = simgpt("compare", str(log), *question.as_words(), "--json")
    answer = api.compare(log, **named)
    told = json.loads(line.out)
    assert answer.to_dict()["predicted"] == told["predicted"]
    assert answer.question == Question.from_json(told) == question.changed(plan="dp=4")


def test_a_question_is_changed_field_by_field() -> None:
    asked = Question.of(model="tiny-1m", batch=8, set={"nodes": "9"})
    changed = asked.changed(batch_tokens="1Ki", set={"device.launch": "9 us"})
    assert (changed.batch, changed.batch_tokens) == (None, 1024)
    assert changed.set == {"nodes": "9", "device.launch": "9 us"}
    assert changed.changed(batch=4).batch_tokens is None
    assert changed.changed(set=None).set == {}


def test_words_that_are_no_question_are_refused() -> None:
    with pytest.raises(QuestionError, check=names("bacth", "batch")):
        Question.of(bacth=3)
    with pytest.raises(QuestionError, check=names("--help")):
        Question.of(model="--help")
    with pytest.raises(QuestionError, check=names("search")):
        Question.from_json({"plans": [], "model": "tiny-1m"})
    with pytest.raises(QuestionError):
        Question.from_json([1])


KEYS = st.fixed_dictionaries(
    {"model": st.just("tiny-1m"), "machine": st.sampled_from(["frontier", "2x8xH100,8xNDR"])},
    optional={
        "devices": st.integers(1, 10_000_000),
        "batch": st.integers(1, 10**9),
        "plan": st.sampled_from(["tp=2", "dp=rest,overlap=dp+oag", "hsdp=8,dp=rest"]),
        "tokens": st.sampled_from([1e9, 3e11]),
        "placement": st.sampled_from(["contiguous", "random:seed=1"]),
        "model_set": st.dictionaries(
            st.sampled_from(["layers", "sequence"]), st.integers(1, 4096), max_size=2
        ),
        "set": st.dictionaries(
            st.sampled_from(["device.launch", "nodes"]), st.sampled_from(["5 us", "7"]), max_size=2
        ),
    },
)


@given(KEYS)
def test_a_question_is_the_same_through_words_toml_and_json(given_: dict[str, Any]) -> None:
    question = Question(**given_)
    for way in (of_words, of_toml, of_json, of_study):
        assert way(given_) == question
        assert way(given_).key == question.key


TWO_STUDIES = """title = "one plan"
model = "tiny-1m"
machine = "frontier"
devices = 8
batch = 16
plan = "p.toml"
stack = "simgpt"
"""


def test_a_study_reads_its_own_file_of_a_plan(tmp_path: Path) -> None:
    """Beside another study of the same words, and again when the file has changed."""
    for name, tp in (("a", 4), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.toml").write_text(TWO_STUDIES, encoding="utf-8")
        (tmp_path / name / "p.toml").write_text(f'tp = {tp}\ndp = "rest"\n', encoding="utf-8")
    found = {}
    for name in "ab":
        rows = api.sweep(tmp_path / name / "study.toml", output=tmp_path / f"rows-{name}")
        found[name] = rows.to_dict()["rows"][0]["prediction"]["plan_string"]
    assert found == {"a": "tp=4,dp=2", "b": "tp=2,dp=4"}
    (tmp_path / "a" / "p.toml").write_text('tp = 8\ndp = "rest"\n', encoding="utf-8")
    said = simgpt("sweep", str(tmp_path / "a" / "study.toml"), "-o", str(tmp_path / "rows-a"))
    assert said.status == 2
    assert_names(said.sentence, "p.toml")


@pytest.mark.parametrize("more", [("predict", "--sweep", "zero=0,1"), ("plan-run",)])
def test_an_answer_that_began_with_a_file_is_the_whole_question(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    asked = Question.of(**{**SMALL, "stack": "simgpt", "tokens": 1e9, "plan": "tp=2,dp=rest"})
    begun = tmp_path / "begun.json"
    begun.write_text(json.dumps(asked.as_json()), encoding="utf-8")
    run = ("--mtbf", "400d", "--save-time", "60s") if more[0] == "plan-run" else ()
    words = (more[0], "--question", str(begun), *more[1:], "--batch", "32", *run, "--json")
    answer = json.loads(simgpt(*words).out)
    begun.unlink()
    assert Question.from_json(answer) == asked.changed(batch=32)


def test_every_table_of_a_machine_is_set_in_every_interface() -> None:
    heads = {key.partition(".")[0] for kind in KINDS for key in known_keys(kind)}
    assert heads - {"name", "description", "variant"} <= {*MACHINE_TABLES}
    question = Question.of(**BASE, set={"storage.write": "1 TB/s", "run_to_run.step": "2%"})
    assert Question.from_toml(question.as_toml()) == question


def test_an_imported_job_is_a_question(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 "
        "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 "
        "--global-batch-size 16 --vocab-size 512\n",
        encoding="utf-8",
    )
    for machine in (None, "dgx-h100"):
        job = api.import_job(script, devices=8, machine=machine)
        assert job.question.machine == (machine or "")
        assert job.question.devices == 8
        assert Question.from_json(job.to_dict()) == job.question
    assert api.predict(job.question).devices == 8


@pytest.mark.parametrize("name", ["stack", "routing", "machine", "placement"])
def test_an_empty_text_is_refused(name: str) -> None:
    words = Question.of(**SMALL).as_words()
    assert simgpt("predict", *words).status == 0
    said = simgpt("predict", *words, *ROWS[name].flags[-1:], "")
    assert said.status == 2
    with pytest.raises(api.SimgptError):
        api.predict(**{**SMALL, name: ""})


ASKED = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["tiny-1m", "tiny-mixtral-2m"]),
        "machine": st.sampled_from(["frontier", "dgx-h100", "2x8xH100,8xNDR"]),
        "devices": st.sampled_from([8, 16]),
        "batch": st.sampled_from([16, 32, 33]),
    },
    optional={
        "plan": st.sampled_from(["tp=2,dp=rest", "z=2,dp=rest", "hsdp=2,dp=rest", "tp=3,dp=rest"]),
        "placement": st.sampled_from(["scheduler", "random:seed=1", "nowhere"]),
        "stack": st.sampled_from(["simgpt", "torchtitan"]),
        "compute": st.sampled_from(["machine", "profile"]),
        "model_set": st.sampled_from([{"sequence": "64"}, {"layers": 3}]),
        "set": st.sampled_from([{"device.launch": "9 us"}, {"nothing": 1}]),
    },
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ASKED)
def test_every_interface_answers_alike_or_refuses(tmp_path: Path, given_: dict[str, Any]) -> None:
    """The step and its stack, by words, Python, files, a study of one point and the page."""
    try:
        question = Question.of(**given_)
    except api.SimgptError:
        with pytest.raises(api.SimgptError):
            api.predict(**given_)
        assert "error" in answered("predict", page_of(given_))
        return
    words = answer_of(simgpt("predict", *question.as_words(), "--json"))
    kept = {"q.json": json.dumps(question.as_json()), "q.toml": toml_text(question.as_toml())}
    found = [words]
    for name, text in kept.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        found.append(answer_of(simgpt("predict", "--question", str(tmp_path / name), "--json")))
    try:
        found.append(known(api.predict(**given_).to_dict()))
    except api.SimgptError:
        found.append(None)
    try:
        rows = api.predict(question, sweep={"placement": [question.placement]}).to_dict()["rows"]
        found.append(known(rows[0]["prediction"]))
    except api.SimgptError:  # of a study that cannot be read
        found.append(None)
    found.append(known(answered("predict", page_of(given_)).get("prediction")))
    assert found == [words] * len(found)


def answer_of(said: Said) -> tuple[float, str] | None:
    return known(json.loads(said.out)) if said.out else None


def known(prediction: Mapping[str, Any] | None) -> tuple[float, str] | None:
    return None if prediction is None else (prediction["step_s"], prediction["stack"])
