"""`simgpt import`: the question that another framework's files ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.arguments.machine import own_machine
from simgpt.invocation import ran
from simgpt.question import Question
from simgpt.question_rows import MACHINE_HELP, ROWS
from workload.plan import text_of

if TYPE_CHECKING:
    from simgpt.frameworks.imported_job import ImportedJob, Instead
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
@ROWS["machine"].option(help=f"{MACHINE_HELP} For the command that is printed.")
@ROWS["devices"].option(help="Devices, where the files do not say.")
@click.option("--model", help="A MODEL, where the files do not describe one.")
@ROWS["model_set"].option()
@ROWS["stack"].option(help="The stack, in place of the one that the files ask for.")
@ROWS["batch"].option(help="Sequences per step, in place of the files'.")
@ROWS["batch_tokens"].option()
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
    job = imported(
        files,
        how["framework"],
        devices=how["devices"],
        model=how["model"],
        changed=how["model_set"],
        defined=_definitions(how["definitions"]),
        room=_room(machine),
        instead=_instead(how["stack"], how["batch"], how["batch_tokens"]),
        recipe=how["recipe"],
    )
    text = describe(job, machine, verbose=how["verbose"])
    answer = record(job, machine) | ran()
    comment = None
    if how["predicts"] and _can_run(job):
        more, answer["prediction"], comment = _predicted(job, machine or "", how["output"])
        text = f"{text}\n\n{more()}"
    options.answer(text, answer, as_json=how["as_json"], output=how["output"])
    _check(job)
    if comment is not None:
        comment()


def _predicted(
    job: ImportedJob, machine: str, output: Path | None
) -> tuple[Callable[[], str], dict[str, Any], Callable[[], None]]:
    """The answer of the command that asks the job's question, as what makes its text and as JSON,
    and what is said after it, which ends with status 3 where the plan does not fit."""
    from simgpt.commands import predict

    for known, option in ((job.question.model, "--model"), (job.question.devices, "-n")):
        if not known:
            raise click.UsageError(f"--predict: the files do not say it all; give {option}")
    asked = job.question.changed(machine=machine)
    with predict.command.make_context("predict", asked.as_words()) as context:
        others = {name: each for name, each in context.params.items() if name not in ROWS}
        text, record, found = predict.answered(asked, others)
    return text, record, partial(predict.comment, found, record["remedy"] or "", output)


def _check(job: ImportedJob) -> None:
    """Refuse, with the answer said, a question that cannot be asked."""
    from simgpt.frameworks.reading import FrameworkError

    if job.refused:
        first, more = job.refused[0], len(job.refused) - 1
        others = f" (and {tables.several(more, 'other setting')})" if more else ""
        raise FrameworkError(f"refused: {first}: {first.why}{others}")
    if job.missing:
        raise FrameworkError(_missing(job))


def _instead(stack: str | None, batch: int | None, tokens: int | None) -> Instead:
    """What the options say in place of the files."""
    from simgpt.frameworks.imported_job import Instead
    from simgpt.step import batch_of

    if tokens is None:
        return Instead(stack, batch)
    if batch is not None:
        raise click.UsageError("give --batch or --batch-tokens, not both")
    asked = Question(batch_tokens=tokens)
    return Instead(stack, lambda gpt: batch_of(asked, gpt) or 0)


def _room(machine: str | None) -> tuple[int, int] | None:
    """The nodes of a machine of the user's own, and the devices of each."""
    if machine is None or (own := own_machine(machine)) is None:
        return None
    return own.nodes, own.devices_per_node


def _missing(job: ImportedJob) -> str:
    """Which fields of a model the files do not say, and how to say them."""
    from simgpt.frameworks.imported_job import like_preset

    missing = job.missing
    named = [WORDS[key] for key in missing]
    listed = " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
    keys = " ".join(f"--model-set {key}=N" for key in missing)
    said = f"{listed} {'is' if len(named) == 1 else 'are'} missing: add {keys}"
    like = like_preset(job.described) if missing == ("vocab",) else None
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


def record(job: ImportedJob, machine: str | None) -> dict[str, Any]:
    """The question as JSON has it."""
    return {
        "framework": list(job.frameworks),
        "settings": job.settings,
        "model": job.question.model or None,
        "model_set": dict(job.question.model_set),
        "plan": dict(job.plan),
        "batch": job.question.batch,
        "batch_words": job.batch_words or None,
        "stack": job.question.stack,
        "stack_words": job.stack_words or None,
        "devices": job.question.devices,
        "devices_words": job.devices_words or None,
        "missing": list(job.missing),
        "changes": [_remark(each) for each in job.changes],
        "refused": [_remark(each) for each in job.refused],
        "without_effect": [str(each) for each in job.without_effect],
        "predict": job.command(machine) if _can_run(job) else None,
        "question": job.asked_on(machine).as_json() if _can_run(job) else None,
    }


def _remark(remark: Remark) -> dict[str, str]:
    return {"name": remark.name, "value": remark.value, "why": remark.why}


def describe(job: ImportedJob, machine: str | None, *, verbose: bool = False) -> str:
    """The question as a person reads it."""
    counted = tables.several(job.settings, "setting")
    said = {
        "read": f"{counted} of {' and '.join(job.frameworks)}",
        "model": job.question.model or _model_in_part(job),
        **{key: str(value) for key, value in job.question.model_set.items()},
        "plan": job.question.plan,
        "batch": _batch(job),
        "stack": _with_words(job.question.stack, job.stack_words),
        "devices": _devices(job),
    }
    parts = [tables.table([], list(said.items()), left=2)]
    lists = {
        "ignored, although it affects step time": job.changes,
        "refused": job.refused,
    }
    for title, remarks in lists.items():
        rows = [(str(each), each.why) for each in remarks]
        if rows:
            name = "simgpt assumes" if remarks is job.changes else "why"
            parts.append(tables.table([title, name], rows, left=2))
    parts += _without_effect(job, verbose)
    if _can_run(job):
        parts.append(job.command(machine))
    return "\n\n".join(parts)


def _can_run(job: ImportedJob) -> bool:
    """Whether a command can ask what the job's step takes."""
    return not job.refused and not job.missing


def _model_in_part(job: ImportedJob) -> str:
    """What the files say of a model that they do not say whole."""
    if not job.missing:
        return "not in these files: give --model"
    named = [f"{key}={text_of(value)}" for key, value in job.described.items()]
    return f"{', '.join(named)}; {', '.join(job.missing)} missing"


def _devices(job: ImportedJob) -> str:
    if job.question.devices is None:
        return "not said: give -n"
    return _with_words(f"{job.question.devices:,}", job.devices_words)


def _batch(job: ImportedJob) -> str:
    if job.question.batch is None:
        return "not said: give --batch"
    return _with_words(f"{job.question.batch:,} sequences", job.batch_words)


def _with_words(text: str, words: str) -> str:
    return f"{text}: {words}" if words else text


def _without_effect(job: ImportedJob, verbose: bool) -> list[str]:
    """What does not matter for a step: counted, or listed."""
    names = [str(each) for each in job.without_effect]
    if not names:
        return []
    counted = f"{tables.several(len(names), 'setting')} without effect on a step's time or memory"
    listed = ":\n" + tables.paragraph(", ".join(names), indent="") if verbose else ""
    return [counted + (listed or " (-v lists them)")]
