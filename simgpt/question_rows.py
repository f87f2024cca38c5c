"""The fields of a question as interfaces have them: the option, the type, and what it is for.

`simgpt/question.py` has the fields themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, TypeVar

import click

from simgpt.arguments.tokens import BatchTokens, Sequences, Tokens, as_tokens
from simgpt.plain_words import plain_words
from topologies.errors import SimgptError
from topologies.files.printable import shown as printed
from topologies.hardware.node import MOST_DEVICES as MOST_TRAYS
from topologies.placement_names import check_placement
from topologies.records import record
from workload.descriptions.fields import field_value
from workload.plan import text_of
from workload.splits.plan_values import MOST

Command = TypeVar("Command", bound=Callable[..., Any])
Table = dict[str, Any]  # of a question by dotted keys: `plan.zero`, `model.layers`, `devices`
MOST_DEVICES = 10_000_000
NAMED = ("model", "machine", "stack", "routing")  # fields that may name a file
LABELS = ("name", "source")  # of a model, which say nothing of its shape
SEGMENT, SEGMENT_KEY = "segment", "node.segment"


class QuestionError(SimgptError):
    """A question that cannot be read, or a study of several."""


class Policy(click.types.StringParamType):
    """Where ranks are placed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        check_placement(str(value))
        return str(value)


class Pairs(click.ParamType[Table]):
    """Several `key=value`, of the machine's file or of the model."""

    name = "key=value"

    def __init__(self, field: str, read: Callable[[str, Any], Any], example: str) -> None:
        self._field, self._read, self._example = field, read, example

    def of(self, given: Any) -> Table:
        """The values by key, of a mapping or of texts `key=value`, each key once."""
        if isinstance(given, Mapping):
            return {str(key): self._value(str(key), each) for key, each in given.items()}
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
            raise QuestionError(f"{self._field} = {printed(given)}: write {self._example}")
        found: Table = {}
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise QuestionError(f"{self._field} {printed(text)}: write {self._example}")
            if key in found:
                raise QuestionError(f"{self._field} {key} stands twice")
            found[key] = self._value(key, value)
        return found

    def _value(self, key: str, given: Any) -> Any:
        if given is None or isinstance(given, Mapping | bytes):
            raise QuestionError(f"{self._field}[{key!r}] cannot be {printed(repr(given))}")
        plain = isinstance(given, str | bool | int | float | list | tuple)
        return self._read(key, given if plain else str(given))  # a number of numpy, for one


def _field_of_model(key: str, given: Any) -> Any:
    if key in LABELS:
        raise QuestionError(f"model_set {key}: a model's {key} is not set, but its shape")
    if given == "":
        raise QuestionError(f"model_set {key}=: write key=value, as in sequence=4096")
    return field_value(key, as_tokens(key, given))


@record
class Row:
    """A field as interfaces have it: the option that gives it, the type that reads it from a text,
    and what `simgpt COMMAND --help` says of it."""

    name: str
    flags: tuple[str, ...]
    kind: click.ParamType[Any]
    help: str
    metavar: str | None = None

    def option(self, **changes: Any) -> Callable[[Command], Command]:
        """The option of a command, or its argument, where the row has no flags."""
        if not self.flags:
            return click.argument(self.name, **changes)
        told: dict[str, Any] = {"type": self.kind, "help": self.help, "metavar": self.metavar}
        if isinstance(self.kind, Pairs):
            told |= {"multiple": True, "callback": self._paired}
        return click.option(*self.flags, self.name, **(told | changes))

    def _paired(self, context: click.Context, _: click.Parameter, words: Sequence[str]) -> Any:
        pairs = self.kind
        assert isinstance(pairs, Pairs)
        more = context.meta.get(SEGMENT) if self.name == "set" else None
        try:
            found = pairs.of(words)
        except QuestionError as error:
            said = f"{self.flags[0]}{str(error).removeprefix(self.name)}"
            raise click.UsageError(said, context) from None
        return found | ({} if more is None else {SEGMENT_KEY: str(more)})

    def read(self, value: Any) -> Any:
        """The field's value from one of its kind, or from its text; a QuestionError says what is
        wrong."""
        if isinstance(self.kind, Pairs):
            return self.kind.of(value)
        if self.name == "plan":
            value = plan_text(value) if isinstance(value, Mapping) else value
            value = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        if value is None or isinstance(value, bool | bytes | Mapping | list | tuple):
            raise QuestionError(f"{self.name} = {printed(value)} must be one value")
        text = fspath(value) if isinstance(value, PathLike) else value
        if isinstance(self.kind, click.types.StringParamType):
            if not isinstance(text, str):
                raise QuestionError(f"{self.name} = {printed(value)} must be text")
            if not text and self.name != "plan":
                raise QuestionError(f"{self.name} is empty")
            if text.startswith("-"):  # on a command line it would be an option
                raise QuestionError(f"{self.name} = {printed(repr(text))} must not begin with -")
        try:
            return self.kind.convert(str(text), None, None)
        except click.BadParameter as error:
            said = plain_words(error.message.removesuffix("."))
            raise QuestionError(f"{self.name}: {said}") from None

    def words(self, value: Any) -> list[str]:
        """The words of a command line that give the value."""
        if isinstance(value, Mapping):
            pairs = [f"{key}={shown(each)}" for key, each in value.items()]
            return [word for pair in pairs for word in (self.flags[0], pair)]
        whole = isinstance(value, float) and value.is_integer() and isinstance(self.kind, Tokens)
        return [*self.flags[:1], f"{value:.0f}" if whole else shown(value)]


MODEL_HELP = "A preset, fields or a file (docs/models.md)."
MACHINE_HELP = "A machine's name, its file, or its parts as in 64x8xH100,8xNDR."
ROUTING_HELP = (
    "How often each expert is chosen, measured (simgpt run --routing-out, or docs/models.md); "
    "default: all equally often."
)
PLACEMENT_HELP = (
    "Where ranks land: scheduler, contiguous, scattered:30, random:seed=1, hosts:NAME[1-64]."
)
STACK_HELP = (
    "The software that trains, by name (simgpt stacks), or its TOML file; default: that of the "
    "machine (docs/stacks.md)."
)
COMPUTE_HELP = (
    "Times of compute ops: the machine's own, its matmuls interpolated in published tables, or "
    "each op run once on the device at hand."
)
MODEL_SET_HELP = (
    "Change the model: sequence=4096. (MODEL: a preset, fields, or a file; docs/models.md)"
)
_ROWS = (  # in the order of a command line
    Row("model", (), click.STRING, MODEL_HELP),
    Row(
        "model_set",
        ("--model-set",),
        Pairs("model_set", _field_of_model, "key=value, as in sequence=4096"),
        MODEL_SET_HELP,
        "KEY=VALUE",
    ),
    Row("machine", ("-m", "--machine"), click.STRING, MACHINE_HELP),
    Row(
        "devices",
        ("-n", "--devices"),
        click.IntRange(1, MOST_DEVICES),
        "Devices; dp=rest fills them.",
    ),
    Row("stack", ("--stack",), click.STRING, STACK_HELP),
    Row("plan", ("--plan", "-p"), click.STRING, "key=value,… or a TOML or JSON file."),
    Row("batch", ("--batch", "-b"), Sequences(MOST), "Sequences per step."),
    Row(
        "batch_tokens",
        ("--batch-tokens",),
        BatchTokens(),
        "Tokens per step instead: 16777216, 16Mi (2**24), 4M (4e6).",
    ),
    Row(
        "set",
        ("--set",),
        Pairs("set", lambda _, value: value, "key=value, as in device.launch='5 us'"),
        "Change the machine.",
        "KEY=VALUE",
    ),
    Row("routing", ("--routing",), click.STRING, ROUTING_HELP, "FILE"),
    Row("placement", ("--placement",), Policy(), PLACEMENT_HELP),
    Row("compute", ("--compute",), click.Choice(["machine", "profile", "measured"]), COMPUTE_HELP),
    Row(
        "tokens",
        ("--tokens",),
        Tokens(),
        "Say what training on so many tokens takes: 300e9, 300B, 1T.",
    ),
)
ROWS: Mapping[str, Row] = {row.name: row for row in _ROWS}


def plan_text(words: Mapping[str, Any]) -> str:
    """A plan's text from its keys and values.

    >>> plan_text({"tp": 2, "overlap": ["dp", "oag"], "sp": True})
    'tp=2,overlap=dp+oag,sp=true'
    """
    return ",".join(f"{key}={text_of(value)}" for key, value in words.items())


def shown(value: Any) -> str:
    """A value as a command line has it."""
    return value if isinstance(value, str) else json.dumps(value)


def words_of(given: Mapping[str, Any]) -> list[str]:
    """The words of a command line that give these values of fields."""
    rows = [row for row in ROWS.values() if row.name in given]
    return [word for row in rows for word in row.words(given[row.name])]


def _keep_segment(context: click.Context, _: click.Parameter, trays: int | None) -> None:
    if trays is not None:
        context.meta[SEGMENT] = trays


_SEGMENT_KIND = click.IntRange(1, MOST_TRAYS)
_segment_option = click.option(
    "--segment",
    type=_SEGMENT_KIND,
    expose_value=False,
    is_eager=True,
    callback=_keep_segment,
    help="Trays of a segment in one rack, as Slurm's --segment; racks of trays alone.",
)


def with_options(
    function: Callable[..., Any], names: Sequence[str], **changes: Mapping[str, Any]
) -> Callable[..., Any]:
    """Give a function the options of the fields of these names; `changes` are attributes of single
    fields' options."""
    for name in reversed(names):
        function = ROWS[name].option(**changes.get(name, {}))(function)
        function = _segment_option(function) if name == "set" else function
    return function


def trays_of(given: Any) -> str:
    """A number of trays of a segment."""
    try:
        return str(_SEGMENT_KIND(str(given)))
    except click.BadParameter as error:
        raise QuestionError(f"{SEGMENT}: {plain_words(error.message)}") from None
