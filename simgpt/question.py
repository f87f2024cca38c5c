"""One question: which step of which model, split how, on which machine, under which stack.

Every interface asks a `Question`: commands, Python, studies, anchors' files, the served page,
reports, importers and exporters. To add something that can be asked, give `Question` a field,
`simgpt/question_rows.py` its row, and `simgpt/step.py` what follows from it; no interface names the
fields one by one.

A question has texts and numbers alone. What they stand for (a model, a machine, a plan) is read by
`simgpt/step.py`, which also predicts it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from simgpt.arguments.tokens import as_tokens
from simgpt.question_rows import (
    LABELS,
    ROWS,
    SEGMENT,
    SEGMENT_KEY,
    QuestionError,
    Table,
    plan_text,
)
from topologies.files.printable import shown as printed
from topologies.files.reading import UserFile
from topologies.hardware.node import MOST_DEVICES as MOST_TRAYS
from topologies.placement_names import check_placement
from topologies.records import record
from workload.descriptions.fields import KINDS, field_value
from workload.errors import ModelError
from workload.plan import text_of
from workload.plan_text import ALIASES, KEYS, REALS, REST, SHARDED, plan_value, plan_words
from workload.recipes.table import recipe_words
from workload.splits.plan_values import check_value
from workload.words.foreign_words import MODEL_WORDS, PLAN_WORDS, plain

USUAL_PLAN = "dp=rest"
BATCHES = ("batch", "batch_tokens")  # of which one is given
MEASURED = "measured"  # a table of an anchor's file beside its question
BEGUN = "question"  # the one that a command's options begin with, in click's context
BEST = "best"  # in place of a plan: the fastest that fits
FILES = (".toml", ".json")
HEADS = {"model": "model_set", "machine": "set"}  # of dotted keys, and the fields that have them
CHANGES = tuple(HEADS.values())
MODEL_KEYS = tuple(key for key in KINDS if key not in LABELS)
PLAN_KEYS = tuple(key for key in KEYS if key != "batch")
MACHINE_TABLES = ("device", "node", "nodes", "interconnect", "network", "software", "power")


_FILE = UserFile("question", QuestionError)


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
            values["set"] = {**ROWS["set"].read(values.get("set", {})), SEGMENT_KEY: str(trays)}
        for name in values:
            if name not in ROWS:
                near = difflib.get_close_matches(name, ROWS, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(ROWS)}"
                raise QuestionError(f"a question has no {printed(name)}; {hint}")
        return cls(**{name: ROWS[name].read(each) for name, each in values.items()})

    @classmethod
    def from_words(cls, words: Iterable[str], parent: click.Context | None = None) -> Question:
        """The question of the words after `simgpt predict`, with the errors of the command line.

        >>> Question.from_words(["gpt-5b", "-m", "frontier", "-n", "64", "--set", "nodes=9"]).set
        {'nodes': '9'}
        """
        told: list[Question] = []
        command = click.command("predict")(asks()(told.append))
        settings = {} if parent is None else {"help_option_names": parent.help_option_names}
        with command.make_context("predict", list(words), parent, **settings) as context:
            command.invoke(context)
        return told[0]

    @classmethod
    def from_toml(cls, document: Mapping[str, Any], folder: Path = Path()) -> Question:
        """The question of a TOML document, which names files as they lie in its folder: the fields
        of a question, and under `[set]` single keys of the plan, the model and the machine.

        >>> Question.from_toml({"model": "gpt-5b", "machine": "frontier", "set": {"zero": 1}}).plan
        'dp=rest,zero=1'
        """
        return cls.of_table(table_of(document), folder)

    @classmethod
    def of_table(cls, table: Mapping[str, Any], folder: Path = Path()) -> Question:
        """The question of a table with the full names of its keys (`canonical`)."""
        given = {key: each for key, each in table.items() if "." not in key}
        given["plan"] = _text_of_plan(table)
        given |= {name: keys_of(table, head) for head, name in HEADS.items()}
        named = {key: located(str(given[key]), folder) for key in NAMED if given.get(key)}
        return cls.of(**given | named)

    @classmethod
    def from_json(cls, document: Any) -> Question:
        """The question of a JSON object: of `as_json`, of the answer of a command, which asks for
        its step with all that was filled in, of a search's best plan, or of a row of a study.

        >>> Question.from_json({"model": "gpt-5b", "machine": "frontier", "devices": "64"}).devices
        64
        """
        if not isinstance(document, dict):
            raise QuestionError("a question in JSON is an object, with model and machine")
        if isinstance(document.get("plans"), list):
            if not document["plans"]:
                raise QuestionError(
                    "the search found no plan, so its answer has no step to ask for"
                )
            shared = {key: each for key, each in document.items() if key in ANSWERED}
            return cls.from_json({**document["plans"][0], **shared})
        if isinstance(document.get("point"), dict):
            return cls.of_table(document["point"])
        if "plan_string" not in document:
            return cls.of(**document)
        from validation.report.provenance import question_in

        return cls.of(**question_in(document, "the answer"))

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
        for one, other in (BATCHES, reversed(BATCHES)):
            if told.get(one) is not None:
                told.setdefault(other, None)
        read = {
            name: getattr(usual, name) if each is None else ROWS[name].read(each)
            for name, each in told.items()
        }
        more = [name for name in CHANGES if told.get(name) is not None]
        merged = {name: {**getattr(self, name), **read[name]} for name in more}
        return replace(self, **(read | merged))


ORDER = {each.name: place for place, each in enumerate(fields(Question))}  # of a table's keys
PLAIN = tuple(name for name in ORDER if name not in CHANGES)  # keys of a table without dots
NAMED = ("model", "machine", "stack", "routing")  # fields that may name a file
ANSWERED = ("asked", "settings", "fields", "placement")  # what an answer says of its question


def _keep_segment(context: click.Context, _: click.Parameter, trays: int | None) -> None:
    if trays is not None:
        context.meta[SEGMENT] = trays


_segment_option = click.option(
    "--segment",
    type=click.IntRange(1, MOST_TRAYS),
    expose_value=False,
    is_eager=True,
    callback=_keep_segment,
    help="Trays of a segment in one rack, as Slurm's --segment; racks of trays alone.",
)


def read_question(path: Path) -> Question:
    """The question of a file: in TOML as a point of a study or an anchor has it, in JSON an answer
    or what `as_json` gives."""
    document = _FILE.document(str(path))
    if path.suffix != ".toml":
        return Question.from_json(document)
    own = {key: each for key, each in document.items() if key != MEASURED}
    return Question.from_toml(own, path.parent)


def _keep_question(context: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Have the options begin with what a file says, which the words of the command stand over."""
    if path is None:
        return
    if path.suffix not in FILES:
        raise click.BadParameter(f"{path} must end in .toml or .json", context, param)
    question = read_question(path)
    plain = {name: each for name, each in question.given.items() if name not in CHANGES}
    context.meta[BEGUN] = question
    context.default_map = {**(context.default_map or {}), **plain}


_question_option = click.option(
    "--question",
    type=click.Path(path_type=Path),
    expose_value=False,
    is_eager=True,
    callback=_keep_question,
    help="Begin with the question of a file, which other options change: the JSON of an answer, or "
    "TOML as an anchor's (docs/studies.md).",
)


def asks(
    *names: str, without: Sequence[str] = (), **changes: Mapping[str, Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of the fields of these names, or of all `without` some; it gets
    the question first. `changes` has what is otherwise with a field's option."""
    rows = [row for row in ROWS.values() if row.name in (names or ROWS) and row.name not in without]
    asked = tuple(row.name for row in rows)

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def told(**values: Any) -> Any:
            mine = {name: values.pop(name) for name in asked}
            given = {name: each for name, each in mine.items() if each is not None}
            return function(Question(**_over(given)), **values)

        told.asked = asked  # type: ignore[attr-defined]
        command: Callable[..., Any] = told if names else _question_option(told)
        for row in reversed(rows):
            told_of = _usual(row.name) | dict(changes.get(row.name, {}))
            command = row.option(**told_of)(command)
            command = _segment_option(command) if row.name == "set" else command
        return command

    return give


def _over(given: dict[str, Any]) -> dict[str, Any]:
    """The values of a command's fields over those of the question that it begins with: keys of the
    machine and the model are added to its own, and of two ways to give the batch the command's
    stands."""
    context = click.get_current_context(silent=True)
    begun: Question | None = None if context is None else context.meta.get(BEGUN)
    if begun is None or context is None:
        return given
    of_words = {
        name: each
        for name, each in given.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    found, before = begun.changed(**of_words).given, begun.given
    own = {name: each for name, each in given.items() if name not in before}
    return {name: each for name, each in {**own, **found}.items() if name in given}


def _usual(name: str) -> dict[str, Any]:
    """What a field's option has where a command says nothing else of it."""
    if name == "machine":
        return {"required": True}
    usual = getattr(Question(), name)
    return {"default": usual, "show_default": True} if usual and name not in CHANGES else {}


def fields_asked(command: click.Command) -> tuple[str, ...]:
    """The fields of the question that a command is asked; none of one that is asked no question."""
    found: tuple[str, ...] = getattr(command.callback, "asked", ())
    return found


def words_of(given: Mapping[str, Any]) -> list[str]:
    """The words of a command line that give these values of fields."""
    rows = [row for row in ROWS.values() if row.name in given]
    return [word for row in rows for word in row.words(given[row.name])]


def located(name: str, folder: Path) -> str:
    """The name of a model, a machine or a stack; one of a file, which a variant may follow, with
    the folder where it lies."""
    path, colon, variant = name.partition(":")
    if "=" in path or not path.endswith(FILES):
        return name
    return f"{folder / path}{colon}{variant}"


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
    if key == "placement" and isinstance(given, str):
        check_placement(given)
    if given == "":
        raise QuestionError(f"{key} is empty")
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
    given, single = table.get("plan", USUAL_PLAN), keys_of(table, "plan")
    if not single:
        return str(given)
    return plan_text({**plan_words("" if given == BEST else given), **plan_words(single)})


def _plan(given: Any) -> str:
    if isinstance(given, dict):
        given = plan_text(given)
    if given == BEST:
        return BEST
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
