"""One question: which step of which model, split how, on which machine, under which stack.

Every interface asks a `Question`: commands, Python, studies, anchors' files, the served page,
reports, importers and exporters. To add something that can be asked, give `Question` a field,
`simgpt/question_rows.py` its row, and `simgpt/step.py` what follows from it. Functions of Python
name it as a keyword too, for editors; a test says which of them lack one.

A question has texts and numbers alone. What they stand for (a model, a machine, a plan) is read by
`simgpt/step.py`, which also predicts it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any

import click
from click.core import UNSET  # type: ignore[attr-defined]

from simgpt.arguments.tokens import as_tokens
from simgpt.plain_words import plain_words
from simgpt.question_rows import (
    LABELS,
    NAMED,
    ROWS,
    SEGMENT,
    SEGMENT_KEY,
    QuestionError,
    Table,
    plan_text,
    trays_of,
    with_options,
    words_of,
)
from topologies.files.named_files import is_plan_file, located, located_plan
from topologies.files.printable import shown as printed
from topologies.records import record
from workload.descriptions.fields import KINDS, field_value
from workload.errors import ModelError
from workload.plan import text_of
from workload.plan_text import ALIASES, KEYS, REALS, REST, SHARDED, WHOLE, plan_value, plan_words
from workload.recipes.table import recipe_words
from workload.splits.plan_values import check_value
from workload.words.foreign_words import MODEL_WORDS, PLAN_WORDS, plain

USUAL_PLAN = "dp=rest"
BATCHES = ("batch", "batch_tokens")  # of which one is given
MEASUREMENT = "measured"  # a table of an anchor's file beside its question
BEST = "best"  # in place of a plan: the fastest that fits
HEADS = {"model": "model_set", "machine": "set"}  # of dotted keys, and the fields that have them
CHANGES = tuple(HEADS.values())
MODEL_KEYS = tuple(key for key in KINDS if key not in LABELS)
PLAN_KEYS = tuple(key for key in KEYS if key != "batch")
MACHINE_TABLES = (
    *("device", "node", "nodes", "interconnect", "network", "software", "power"),
    *("run_to_run", "reliability", "storage"),
)


@record(kw_only=True)
class Question:
    """The step that is asked for; what is not given has its default.

    `plan` is the plan's text or file, `set` changes keys of the machine's file and `model_set`
    fields of the model, `stack` is empty where the machine and the plan choose it
    (simulator/stacks/default_stack.py), and `tokens` are those of a whole training.
    """

    model: str = ""
    machine: str = ""
    devices: int | None = None
    batch: int | None = None
    batch_tokens: int | None = None
    plan: str = USUAL_PLAN
    placement: str = "scheduler"
    tokens: float | None = None
    stack: str = ""
    routing: str = ""
    compute: str = "machine"
    model_set: Mapping[str, Any] = field(default_factory=dict, hash=False)
    set: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, **given: Any) -> Question:
        """The question of values or of their texts by field; None is not given.

        >>> Question.of(model="gpt-5b", machine="frontier", batch_tokens="1Mi").batch_tokens
        1048576
        """
        values = {name: each for name, each in given.items() if each is not None}
        if (trays := values.pop(SEGMENT, None)) is not None:
            count = trays_of(trays)
            values["set"] = {**ROWS["set"].read(values.get("set", {})), SEGMENT_KEY: count}
        for name in values:
            if name not in ROWS:
                raise QuestionError(f"a question has no {printed(name)}; {_hint(name)}")
        return cls(**{name: ROWS[name].read(each) for name, each in values.items()})

    @classmethod
    def from_words(cls, words: Iterable[str]) -> Question:
        """The question of the words after `simgpt predict`, without other options than its fields';
        a QuestionError says what is wrong with one.

        >>> Question.from_words(["gpt-5b", "-m", "frontier", "-n", "64", "--set", "nodes=9"]).set
        {'nodes': '9'}
        """
        told: dict[str, Any] = {}
        asked = with_options(lambda **values: told.update(values), tuple(ROWS))
        command = click.command("predict", add_help_option=False)(asked)
        try:
            with command.make_context("predict", list(words)) as context:
                command.invoke(context)
        except click.ClickException as error:
            raise QuestionError(plain_words(error.format_message().removesuffix("."))) from None
        return cls(**{name: each for name, each in told.items() if each is not None})

    @classmethod
    def from_toml(cls, document: Mapping[str, Any], folder: Path = Path()) -> Question:
        """The question of a TOML document, which names files as they lie in its folder: the fields
        of a question, and under `[set]` single keys of the plan, the model and the machine.

        >>> Question.from_toml({"model": "gpt-5b", "machine": "frontier", "set": {"zero": 1}}).plan
        'dp=rest,zero=1'
        """
        if not isinstance(document, Mapping):
            raise QuestionError("a question in TOML is a table, with model and machine")
        return cls.of_table(table_of(document), folder)

    @classmethod
    def of_table(cls, table: Mapping[str, Any], folder: Path = Path()) -> Question:
        """The question of a table with the full names of its keys (`canonical`)."""
        given = {key: each for key, each in table.items() if "." not in key}
        given["plan"] = _text_of_plan(table)
        given |= {name: keys_of(table, head) for head, name in HEADS.items()}
        named = {key: located(str(given[key]), folder) for key in NAMED if given.get(key)}
        return cls.of(**given | named | {"plan": located_plan(given["plan"], folder)})

    @classmethod
    def from_json(cls, document: Any) -> Question:
        """The question of a JSON object: of `as_json`, of the answer of a command, which asks for
        its step with all that was filled in, of a search's best plan, of a row of a study, or of a
        job that was imported.

        >>> Question.from_json({"model": "gpt-5b", "machine": "frontier", "devices": "64"}).devices
        64
        """
        if not isinstance(document, dict):
            raise QuestionError("a question in JSON is an object, with model and machine")
        shared = {key: each for key, each in document.items() if key in ANSWERED}
        inner = document.get("predicted")
        if isinstance(document.get("plans"), list):
            inner = _best_of(document["plans"])
        if isinstance(inner, dict) and "plan_string" in inner:  # of a search, a job, a comparison
            return cls.from_json({**inner, **shared})
        if isinstance(document.get("point"), dict):
            return cls._of_row(document)
        if "breakdown_s" in document or ("plan_string" in document and "plan" in document):
            from validation.report.provenance import question_in

            found = question_in(document, "the answer")
            return cls.of(**{name: each for name, each in found.items() if each != ""})
        said = _table(document, "asked")
        if whole := _table(document, "question") or _table(said, "question"):
            return cls.of(**whole)
        command = said.get("command")
        return cls.of(**document) if command is None else cls.of(**_of_command(str(command)))

    @classmethod
    def _of_row(cls, row: Mapping[str, Any]) -> Question:
        """The question of a study's row, with the stack and, where it was searched for, the plan
        that its prediction has."""
        point, found = table_of(row["point"]), _table(row, "prediction")
        if point.get("plan") == BEST and "plan_string" in found:
            keys = {key: each for key, each in point.items() if not key.startswith("plan")}
            point = {**keys, "plan": found["plan_string"]}
        stack = {"stack": str(found["stack"])} if "stack" in found and "stack" not in point else {}
        return cls.of_table({**point, **stack})

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not at their defaults."""
        usual = Question()
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in named if value != getattr(usual, name)}

    def as_words(
        self, blanks: Mapping[str, str] | None = None, *, without: Sequence[str] = ()
    ) -> list[str]:
        """The words after `simgpt predict`, or after a command `without` options of some fields;
        `blanks` stand for fields that are not known.

        >>> Question(model="gpt-5b", machine="frontier", devices=64).as_words()
        ['gpt-5b', '-m', 'frontier', '-n', '64', '--plan', 'dp=rest']
        """
        given = {**self.given, **({"plan": self.plan} if self.plan else {})}
        given |= {name: word for name, word in (blanks or {}).items() if name not in given}
        return words_of({name: each for name, each in given.items() if name not in without})

    def as_json(self) -> dict[str, Any]:
        """The fields that are not at their defaults, as JSON has them."""
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in self.given.items()
        }

    def as_toml(self) -> dict[str, Any]:
        """The document that `from_toml` reads as this question."""
        top = {name: value for name, value in self.as_json().items() if name not in CHANGES}
        top |= {"plan": self.plan}
        changed = {
            f"{head}.{key}": value
            for head, name in HEADS.items()
            for key, value in getattr(self, name).items()
        }
        return top | ({"set": changed} if changed else {})

    @property
    def command(self) -> str:
        """The command line that asks it, ready for a shell."""
        return shlex.join(["simgpt", "predict", *self.as_words()])

    @property
    def key(self) -> str:
        """A digest of 16 letters, equal for equal questions; what files say that a question names
        is not looked at."""
        text = json.dumps(self.as_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def changed(self, **given: Any) -> Question:
        """The question with other values of some fields; with None a field has its default. Keys of
        the machine and the model are added to its own, and of the two ways to give a batch the
        other one goes."""
        usual, told = Question(), dict(given)
        for one, other in (BATCHES, BATCHES[::-1]):
            if told.get(one) is not None:
                told.setdefault(other, None)
        own = Question.of(**told)  # which reads them, and folds a segment into the machine's keys
        if told.pop(SEGMENT, None) is not None:
            told["set"] = own.set
        read = {name: getattr(usual if told[name] is None else own, name) for name in told}
        more = [name for name in CHANGES if told.get(name) is not None]
        merged = {name: {**getattr(self, name), **read[name]} for name in more}
        return replace(self, **(read | merged))


ORDER = {each.name: place for place, each in enumerate(fields(Question))}  # of a table's keys
PLAIN = tuple(name for name in ORDER if name not in CHANGES)  # keys of a table without dots
ANSWERED = ("asked", "settings", "fields", "placement")  # what an answer says of its question


def canonical(key: str) -> str:
    """A key of a question's table by its full name.

    >>> canonical("zero"), canonical("layers"), canonical("device.launch"), canonical("plan.batch")
    ('plan.zero', 'model.layers', 'machine.device.launch', 'batch')
    >>> canonical("hsdp"), canonical("segment")
    ('plan.hsdp', 'machine.node.segment')
    """
    head, dot, rest = key.partition(".")
    bare = rest if dot and head in ("model", "plan") else key
    if key == SEGMENT:
        return f"machine.{SEGMENT_KEY}"
    bare = ALIASES.get(bare, bare) if bare == key or head == "plan" else bare
    if bare in PLAIN and bare in (key, "batch"):
        return bare
    if bare in (*PLAN_KEYS, *SHARDED) and (not dot or head == "plan"):
        return f"plan.{bare}"
    if bare in MODEL_KEYS and (bare == key or head == "model"):
        return f"model.{bare}"
    if head == "machine" and rest.partition(".")[0] in MACHINE_TABLES:
        return key
    if head in MACHINE_TABLES:
        return f"machine.{key}"
    known = (*PLAIN, *PLAN_KEYS, *MODEL_KEYS)
    ours = PLAN_WORDS.get(plain(bare)) or MODEL_WORDS.get(plain(bare))
    near = [ours] if ours else difflib.get_close_matches(bare, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}, or a machine's key"
    raise QuestionError(f"unknown key {key!r}; {hint}")


def value(key: str, given: Any) -> Any:
    """The value of a key with its full name, in its kind; a machine's key is looked at later."""
    head, _, rest = key.partition(".")
    if isinstance(given, dict) and key != "plan":
        raise QuestionError(f"{key} = {given} is a table, but must be one value")
    if head == "plan":
        return _plan(given) if key == "plan" else _plan_value(rest, given)
    if head == "model" and rest:
        return _field(rest, given)
    if head == "machine" and rest:
        return given
    return ROWS[key].read(given)


def table_of(document: Mapping[str, Any]) -> Table:
    """The table of a question's TOML, by full names, each value in its kind."""
    found: Table = {}
    for given, each in {**document, **flat(document.get("set", {}))}.items():
        if given == "set":
            continue
        key = canonical(given)
        if key in found:
            raise QuestionError(f"{key} stands twice")
        found[key] = value(key, each)
    return found


def flat(table: Any, prefix: str = "") -> Table:
    """A table's values by dotted keys, so that `plan.x` reads alike quoted or not."""
    if not isinstance(table, Mapping):
        raise QuestionError(f"set = {table} must be a table: write [set] above its keys")
    found: Table = {}
    for key, given in table.items():
        whole = prefix + key
        if isinstance(given, Mapping):
            found |= flat(given, f"{whole}.")
        else:
            found[whole] = given
    return found


def ordered(table: Mapping[str, Any]) -> Table:
    """The table with its keys in the one order that rows have."""
    return {
        key: table[key] for key in sorted(table, key=lambda key: (ORDER[key.split(".")[0]], key))
    }


def keys_of(table: Mapping[str, Any], head: str) -> Table:
    """What a table sets of its `plan`, its `model` or its `machine`, key by key."""
    prefix = f"{head}."
    return {key.removeprefix(prefix): v for key, v in table.items() if key.startswith(prefix)}


def _text_of_plan(table: Mapping[str, Any]) -> str:
    """The plan of a table: its plan, and over it the keys that it gives one by one."""
    given, single = str(table.get("plan", USUAL_PLAN)), keys_of(table, "plan")
    if given == BEST:
        raise QuestionError('plan = "best" is for the points of a study, which search for it')
    if not single:
        return given
    if is_plan_file(given):
        raise QuestionError(f"plan = {given} is a file; put plan.{next(iter(single))} into it")
    whole, over = plan_words(given), plan_words(single)
    unsharded = "fsdp" in single and not over and plan_value("zero", whole.get("zero", 0)) == WHOLE
    if unsharded:
        raise QuestionError(
            f"fsdp = {single['fsdp']} and zero={whole['zero']} contradict each other"
        )
    return plan_text({**whole, **over})


def _plan(given: Any) -> str:
    if isinstance(given, dict):
        given = plan_text(given)
    if isinstance(given, str) and (given == BEST or is_plan_file(given)):
        return given
    if not isinstance(given, str):
        raise QuestionError(f'plan = {given} must be text, as in plan = "z=64,dp=rest"')
    for key, item in plan_words(given).items():
        _plan_value(key, item)
    return given


def _plan_value(key: str, given: Any) -> Any:
    """A value of a plan's key in its kind; of `fsdp` and `hsdp`, which stand for several, as it
    is."""
    if isinstance(given, float) and key not in REALS:
        raise QuestionError(f"plan.{key} = {given} is not a plan's value")
    if key in SHARDED:
        for word, said in plan_words({key: given}).items():
            _plan_value(word, said)
        return given
    for word, named in recipe_words({key: given}).items():
        parsed = plan_value(word, named)
        if parsed != REST:
            check_value(word, parsed)
    parsed = plan_value(key, given)
    return text_of(parsed) if isinstance(parsed, tuple) else parsed


def _field(name: str, given: Any) -> Any:
    """A value of the model's own kind, from a number or its text."""
    try:
        return field_value(name, as_tokens(name, given))
    except ModelError as error:
        raise QuestionError(f"model.{error}") from None


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _best_of(plans: Sequence[Any]) -> Any:
    """The first of a search's plans."""
    if not plans:
        raise QuestionError("the search found no plan, so its answer has no step to ask for")
    if not isinstance(plans[0], dict):
        raise QuestionError("plans has something that is not a plan")
    return plans[0]


def _of_command(text: str) -> Table:
    """The fields that a command line of simgpt gives, without a look at what its other options
    name."""
    from simgpt.cli import cli

    try:
        _, name, *words = shlex.split(text)
        command = cli.get_command(click.Context(cli), name)
        if command is None:
            raise QuestionError(f"simgpt has no command {printed(name)}")
        context = click.Context(command, info_name=name)
        found, _, _ = command.make_parser(context).parse_args(words)
    except (ValueError, click.ClickException) as error:
        raise QuestionError(f"{printed(text)} is not a command of simgpt") from error
    asked = {key: found[key] for key in (*ROWS, SEGMENT) if found.get(key, UNSET) is not UNSET}
    if "model" not in asked:
        raise QuestionError(f"simgpt {name} is asked no question about a step")
    return {key: list(each) if isinstance(each, tuple) else each for key, each in asked.items()}


def _hint(name: str) -> str:
    """What a field is called that a question does not have under this name."""
    ours = PLAN_WORDS.get(plain(name), name)
    if ours in PLAN_KEYS or ours in SHARDED:
        return f'it is a key of the plan, as in plan="{ours}=…"'
    near = difflib.get_close_matches(name, ROWS, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(ROWS)}"
