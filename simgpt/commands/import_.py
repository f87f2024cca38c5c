"""`simgpt import`: the question that another framework's files ask."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.arguments.machine import own_machine
from simgpt.arguments.model import fields_of, model_set_option
from simgpt.invocation import ran

if TYPE_CHECKING:
    from simgpt.frameworks.question import Instead, Question
    from simgpt.frameworks.reading import Remark

WORDS = {
    "layers": "the number of layers",
    "hidden": "the width",
    "heads": "the number of heads",
    "sequence": "the length of a sequence",
    "vocab": "the vocabulary",
}
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "megatron-bridge", "nemo", "axonn")


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--from",
    "framework",
    type=click.Choice(FRAMEWORKS),
    help="Whose words these are; else they are known by what they say.",
)
@click.option(
    "--recipe",
    help="A recipe, by name, if FILES is a checkout of Megatron-Bridge, NeMo 2, torchtitan.",
)
@click.option("-m", "--machine", help=f"{options.MACHINE_HELP} For the command that is printed.")
@click.option("-n", "--devices", type=options.DEVICES, help="Devices, where the files do not say.")
@click.option("--model", help="A MODEL, where the files do not describe one.")
@model_set_option
@click.option("--stack", help="The stack, in place of the one that the files ask for.")
@click.option(
    "--batch", "-b", type=options.SEQUENCES, help="Sequences per step, in place of the files'."
)
@click.option("--batch-tokens", type=options.BATCH_TOKENS, help=options.BATCH_TOKENS_HELP)
@click.option(
    "--define",
    "definitions",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable that a script takes from its surroundings.",
)
@click.option("--predict", "predicts", is_flag=True, help="Run that command too; needs -m.")
@click.option("-v", "--verbose", is_flag=True, help="List what does not matter, too.")
@options.answer_options
def command(files: tuple[Path, ...], machine: str | None, **how: Any) -> None:
    """Read a job of another framework from its files, and print the command that predicts it.

    \b
    simgpt import pretrain_gpt.sh -m frontier --predict
    simgpt import model_config.yaml --from megatron -n 8 --json
    simgpt import ds_config.json --model llama-3.1-8b -n 64
    simgpt import Megatron-Bridge --recipe qwen3_30b_a3b_pretrain_8gpu_b200_bf16
    simgpt import NeMo --recipe llama3_70b_pretrain_64gpu_h100_fp8
    simgpt import torchtitan --recipe llama3_8b -n 64

    FILES may be scripts or YAML with Megatron-LM's arguments, torchtitan's TOML, DeepSpeed's JSON,
    recipes of Megatron-Bridge and NeMo in YAML or JSON (with a script that overrides them), or,
    with --recipe, a checkout of Megatron-Bridge (v0.1 to v0.6), NeMo 2 or torchtitan (2026).
    Nothing in a file is executed. Settings that simgpt does not carry over are listed, with what it
    assumes instead.
    """
    from simgpt.frameworks.importing import imported

    if how["predicts"] and machine is None:
        raise click.UsageError("--predict needs the machine: give -m")
    question = imported(
        files,
        how["framework"],
        devices=how["devices"],
        model=how["model"],
        changed=fields_of(how["model_fields"]),
        defined=_definitions(how["definitions"]),
        room=_room(machine),
        instead=_instead(how["stack"], how["batch"], how["batch_tokens"]),
        recipe=how["recipe"],
    )
    text = describe(question, machine, verbose=how["verbose"])
    answer = record(question, machine) | ran()
    comment = None
    if how["predicts"] and _can_run(question):
        more, answer["prediction"], comment = _predicted(question, machine, how["output"])
        text = f"{text}\n\n{more()}"
    options.answer(text, answer, as_json=how["as_json"], output=how["output"])
    _check(question)
    if comment is not None:
        comment()


def _predicted(
    question: Question, machine: str | None, output: Path | None
) -> tuple[Callable[[], str], dict[str, Any], Callable[[], None]]:
    """The answer of the command that asks the question, as what makes its text and as JSON, and
    what is said after it, which ends with status 3 where the plan does not fit."""
    from simgpt.commands import predict

    for known, option in ((question.model, "--model"), (question.devices, "-n")):
        if known is None:
            raise click.UsageError(f"--predict: the files do not say it all; give {option}")
    words = shlex.split(question.command(machine))[2:]
    with predict.command.make_context("predict", words) as context:
        how = dict(context.params)
        text, record, found = predict.answered(how.pop("model"), how.pop("machine"), how)
    return text, record, partial(predict.comment, found, record["remedy"] or "", output)


def _check(question: Question) -> None:
    """Refuse, with the answer said, a question that cannot be asked."""
    from simgpt.frameworks.reading import FrameworkError

    if question.refused:
        first, more = question.refused[0], len(question.refused) - 1
        others = f" (and {tables.several(more, 'other setting')})" if more else ""
        raise FrameworkError(f"refused: {first}: {first.why}{others}")
    if question.missing:
        raise FrameworkError(_missing(question))


def _instead(stack: str | None, batch: int | None, tokens: int | None) -> Instead:
    """What the options say in place of the files."""
    from simgpt.frameworks.question import Instead

    if tokens is None:
        return Instead(stack, batch)
    if batch is not None:
        raise click.UsageError("give --batch or --batch-tokens, not both")
    return Instead(stack, lambda gpt: options.batch_of(None, tokens, gpt) or 0)


def _room(machine: str | None) -> tuple[int, int] | None:
    """The nodes of a machine of the user's own, and the devices of each."""
    if machine is None or (own := own_machine(machine)) is None:
        return None
    return own.nodes, own.devices_per_node


def _missing(question: Question) -> str:
    """Which fields of a model the files do not say, and how to say them."""
    from simgpt.frameworks.question import like_preset

    missing = question.missing
    named = [WORDS[key] for key in missing]
    listed = " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
    keys = " ".join(f"--model-set {key}=N" for key in missing)
    said = f"{listed} {'is' if len(named) == 1 else 'are'} missing: add {keys}"
    like = like_preset(question.described) if missing == ("vocab",) else None
    if like is None:
        return said
    return f"{said}; {like.name} has the same other fields and vocab={like.vocab}"


def _definitions(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--define {word}: write NAME=VALUE, as in TP=4")
        found[name] = value
    return found


def record(question: Question, machine: str | None) -> dict[str, Any]:
    """The question as JSON has it."""
    return {
        "framework": list(question.frameworks),
        "settings": question.settings,
        "model": question.model,
        "model_set": dict(question.model_set),
        "plan": dict(question.plan),
        "batch": question.batch,
        "batch_words": question.batch_words or None,
        "stack": question.stack,
        "stack_words": question.stack_words or None,
        "devices": question.devices,
        "devices_words": question.devices_words or None,
        "missing": list(question.missing),
        "changes": [_remark(each) for each in question.changes],
        "refused": [_remark(each) for each in question.refused],
        "without_effect": [str(each) for each in question.without_effect],
        "predict": question.command(machine) if _can_run(question) else None,
    }


def _remark(remark: Remark) -> dict[str, str]:
    return {"name": remark.name, "value": remark.value, "why": remark.why}


def describe(question: Question, machine: str | None, *, verbose: bool = False) -> str:
    """The question as a person reads it."""
    counted = tables.several(question.settings, "setting")
    said = {
        "read": f"{counted} of {' and '.join(question.frameworks)}",
        "model": question.model or _model_in_part(question),
        **{key: str(value) for key, value in question.model_set.items()},
        "plan": question.plan_text,
        "batch": _batch(question),
        "stack": _with_words(question.stack, question.stack_words),
        "devices": _devices(question),
    }
    parts = [tables.table([], list(said.items()), left=2)]
    lists = {
        "ignored, although it affects step time": question.changes,
        "refused": question.refused,
    }
    for title, remarks in lists.items():
        rows = [(str(each), each.why) for each in remarks]
        if rows:
            name = "simgpt assumes" if remarks is question.changes else "why"
            parts.append(tables.table([title, name], rows, left=2))
    parts += _without_effect(question, verbose)
    if _can_run(question):
        parts.append(question.command(machine))
    return "\n\n".join(parts)


def _can_run(question: Question) -> bool:
    """Whether there is a command that asks the question."""
    return not question.refused and not question.missing


def _model_in_part(question: Question) -> str:
    """What the files say of a model that they do not say whole."""
    from simgpt.frameworks.question import word_of

    if not question.missing:
        return "not in these files: give --model"
    named = [f"{key}={word_of(value)}" for key, value in question.described.items()]
    return f"{', '.join(named)}; {', '.join(question.missing)} missing"


def _devices(question: Question) -> str:
    if question.devices is None:
        return "not said: give -n"
    return _with_words(f"{question.devices:,}", question.devices_words)


def _batch(question: Question) -> str:
    if question.batch is None:
        return "not said: give --batch"
    return _with_words(f"{question.batch:,} sequences", question.batch_words)


def _with_words(text: str, words: str) -> str:
    return f"{text}: {words}" if words else text


def _without_effect(question: Question, verbose: bool) -> list[str]:
    """What does not matter for a step: counted, or listed."""
    names = [str(each) for each in question.without_effect]
    if not names:
        return []
    counted = f"{tables.several(len(names), 'setting')} without effect on a step's time or memory"
    listed = ":\n" + tables.paragraph(", ".join(names), indent="") if verbose else ""
    return [counted + (listed or " (-v lists them)")]
