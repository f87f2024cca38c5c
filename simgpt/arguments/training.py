"""Options of a training run: its data, and its updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from simgpt import options

if TYPE_CHECKING:
    from executor.launching.task_specs import AdamW
    from executor.training.held_out import HeldOut
    from executor.training.learning_rate import Schedule
    from workload.plan import Plan

Command = TypeVar("Command", bound=Callable[..., Any])
DATA = (
    "A text file, Megatron's PREFIX of .bin and .idx, or several of them with weights, as in "
    "a=0.7,b=0.3; default: Python's manual."
)
TOKENIZER = "A tokenizer.json of Hugging Face for the text; default: a token for each byte."
DECAY = (
    "Over how many steps the rate falls to --min-lr; default: from the warm-up to the end, with "
    "wsd the last tenth."
)
HELD_OUT = "Held-out data to evaluate on, named as --data; the same sequences every time."
EVERY = "Evaluate after every so many steps, and after the last."
BATCHES = "Batches of an evaluation, each of --batch sequences; default: 1."
LOG = (
    "Write a line of JSON for each step, as the run goes; --log for short, but not under torchrun."
)
TENSORBOARD = "Write events for TensorBoard into this folder, as the run goes."
BELOW_1 = options.Number(min=0, max=1, max_open=True)
ANY, ABOVE_0 = options.Number(min=0), options.Number(min=0, min_open=True)
KINDS = click.Choice(("constant", "cosine", "wsd", "linear"))
UPDATE: tuple[tuple[str, click.ParamType[Any], Any, str], ...] = (
    ("--lr", ANY, 3e-4, "Learning rate."),
    ("--lr-schedule", KINDS, "constant", "How the learning rate goes after the warm-up."),
    ("--warmup-steps", click.IntRange(0), 0, "Steps in which it rises from 0."),
    ("--decay-steps", click.IntRange(1), None, DECAY),
    ("--min-lr", ANY, None, "What it falls to; default: 0."),
    ("--weight-decay", ANY, 0.1, "Of weights and tables; biases and norms have none."),
    ("--beta1", BELOW_1, 0.9, "AdamW's decay of the mean."),
    ("--beta2", BELOW_1, 0.95, "AdamW's decay of the mean square."),
    ("--eps", ABOVE_0, 1e-8, "What AdamW adds to the root of the mean square."),
    ("--clip", ANY, 1.0, "Clip gradients to this global norm; 0: never."),
)


def data_options(function: Command) -> Command:
    """Give a command --data and --tokenizer."""
    function = click.option("--tokenizer", type=click.Path(), help=TOKENIZER)(function)
    return click.option("--data", "text", type=click.Path(), help=DATA)(function)


def update_options(function: Command) -> Command:
    """Give a command the learning rate with its schedule, AdamW's numbers and the clipping."""
    for name, kind, default, text in reversed(UPDATE):
        shown = default is not None
        function = click.option(name, type=kind, default=default, show_default=shown, help=text)(
            function
        )
    return function


def evaluation_options(function: Command) -> Command:
    """Give a command --eval-data, --eval-every and --eval-batches."""
    counts = {"--eval-batches": BATCHES, "--eval-every": EVERY}
    for name, text in counts.items():
        function = click.option(name, type=click.IntRange(1), help=text)(function)
    return click.option("--eval-data", type=click.Path(), help=HELD_OUT)(function)


def held_out_of(how: dict[str, Any]) -> HeldOut | None:
    """What is to be evaluated and when, if anything."""
    from executor.training.held_out import HeldOut

    text, every, batches = how["eval_data"], how["eval_every"], how["eval_batches"]
    if text is None:
        for option, given in (("--eval-every", every), ("--eval-batches", batches)):
            if given is not None:
                raise click.UsageError(f"{option} needs --eval-data")
        return None
    if every is None:
        raise click.UsageError("--eval-data needs --eval-every")
    return HeldOut(text=text, every=every, batches=batches or 1, tokenizer=_tokenizer(how))


def _tokenizer(how: dict[str, Any]) -> str | None:
    """The tokenizer for held-out data: that of `--data`, unless they have tokens already."""
    from executor.data.indexed import is_indexed

    return None if is_indexed(how["eval_data"]) else how["tokenizer"]


def log_options(function: Command) -> Command:
    """Give a command --log-file and --tensorboard.

    torchrun reads all words behind it too, and takes `--log` for one of its own, cut short: it ends
    with "ambiguous option". No option of its own begins with the longer name.
    """
    folder = click.Path(file_okay=False, path_type=Path)
    function = click.option("--tensorboard", type=folder, help=TENSORBOARD)(function)
    return click.option("--log-file", "--log", "log", type=options.NewFile(), help=LOG)(function)


def adamw_of(how: dict[str, Any]) -> AdamW:
    """The numbers of the update."""
    from executor.launching.task_specs import AdamW

    names = ("lr", "beta1", "beta2", "eps", "weight_decay")
    return AdamW(**{name: how[name] for name in names}, clip=how["clip"] or math.inf)


def check_update(plan: Plan) -> None:
    """Refuse an option of the update that its rule has no use for."""
    from workload.rules import adamw
    from workload.rules.table import rule_of

    rule, source = (
        rule_of(plan.training.optimizer),
        click.get_current_context().get_parameter_source,
    )
    unused = [] if rule.sums_gradients else ["clip"]
    if adamw.UPDATE not in (rule.matrices, rule.others):
        unused += ["beta1", "beta2", "eps"]
    for name in unused:
        if source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} has no effect with optimizer={rule.name}")


def schedule_of(how: dict[str, Any]) -> Schedule:
    """The schedule of the learning rate, refused where an option would change nothing."""
    from executor.training.learning_rate import CONSTANT, WSD, Schedule

    kind, steps, warmup = how["lr_schedule"], how["steps"], how["warmup_steps"]
    least, decay = how["min_lr"] or 0.0, how["decay_steps"] or 0
    for option, given in (("--decay-steps", decay), ("--min-lr", how["min_lr"] is not None)):
        if kind == CONSTANT and given:
            raise click.UsageError(f"{option} needs --lr-schedule cosine, linear or wsd")
    if least > how["lr"]:
        raise click.UsageError(f"--min-lr {least:g} is above --lr {how['lr']:g}")
    schedule = Schedule(kind=kind, warmup_steps=warmup, decay_steps=decay, least=least)
    last, count = schedule.decays_from(steps)
    if kind == WSD and last < warmup:
        raise click.UsageError(
            f"--warmup-steps {warmup} and a decay of {count} are more than --steps {steps}"
        )
    if kind != CONSTANT and count < 1:
        raise click.UsageError(
            f"--warmup-steps {warmup} leaves no step of --steps {steps} to decay in"
        )
    return schedule
