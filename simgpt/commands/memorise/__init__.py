"""`simgpt memorise`: what small models repeat of documents that they were trained on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options
from simgpt.arguments.goldfish import goldfish_options, with_goldfish
from simgpt.commands.memorise import text
from simgpt.invocation import ran
from simgpt.progress import Ticker
from simgpt.question import Question
from simgpt.step import Sources
from workload.descriptions.from_table import with_fields
from workload.gpt import GPT

if TYPE_CHECKING:
    from executor.memorising.spec import Memorisation

SEQUENCE = 128
SHAPES = {"0.5M": (4, 96, 4), "2M": (4, 192, 8), "10M": (4, 448, 8)}  # layers, hidden, heads
GOLDFISH_K = 4  # as Hans et al. (2406.10209) have it in their released configuration


@click.command("memorise")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--documents",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="Documents of each count of repetitions (0, 1, 4 and 6).",
)
@click.option(
    "--passes",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="Times that the whole stream is trained on.",
)
@click.option(
    "--batch",
    "-b",
    type=click.IntRange(1, 100_000),
    default=4,
    show_default=True,
    help="Documents per step.",
)
@click.option(
    "--lr",
    type=options.Number(min=0),
    default=1e-3,
    show_default=True,
    help="Learning rate, after 20 steps of warm-up.",
)
@goldfish_options
@click.option("--data", type=click.Path(), help="A text file; default: Python's manual.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32),
    default=0,
    show_default=True,
    help="Chooses documents, order and initial weights.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Data-parallel ranks to start on this machine.",
)
@options.threads_option
@options.timeout_option
@click.option(
    "--figure",
    type=options.NewFile(".png", ".svg", ".pdf"),
    help="Draw exact matches over repetitions.",
)
@options.answer_options
def command(models: tuple[str, ...], as_json: bool, output: Path | None, **how: Any) -> None:
    """Train models on documents that stand 0, 1, 4 and 6 times in a stream, with and without
    Goldfish loss, and count the documents whose last 50 tokens they generate exactly.

    \b
    simgpt memorise --ranks 2 --figure memorisation.png
    simgpt memorise tiny-1m tiny-2m --documents 4 --passes 20 --goldfish-k 3

    Tokens are bytes. A document is as long as the models' sequence and one token; each is generated
    greedily from its first tokens. Without MODEL there are three, of 0.5, 2 and 10 million
    parameters; without --goldfish-k that is 4.
    """
    from executor.launching.launch import check_ranks, require_torch

    options.check_apart(output, how["figure"], "--figure")
    require_torch()
    check_ranks(how["ranks"])
    tasks = [task for gpt in _models(models) for task in _pair(gpt, how)]
    started = time.perf_counter()
    results = _results(tasks)
    seconds = time.perf_counter() - started
    record = text.record_of(tasks, results, seconds, os.getloadavg()[0]) | ran()
    options.answer(text.describe(record), record, as_json=as_json, output=output)
    if (path := how["figure"]) is not None:
        text.draw(record, path)
        options.wrote([path], str(path))


def _results(tasks: Sequence[Memorisation]) -> list[dict[str, Any]]:
    """What each task gave, one after the other."""
    from executor.launching.launch import launch
    from executor.launching.task_specs import task_line

    results: list[dict[str, Any]] = []
    every = sum(task.steps for task in tasks)
    with Ticker() as ticker:
        for task in tasks:
            before = sum(each.steps for each in tasks[: len(results)])

            def report(
                step: dict[str, Any], task: Memorisation = task, before: int = before
            ) -> None:
                said = f"{text.title(task.gpt)}: step {step['step']}/{task.steps}"
                said = f"{said}, loss {step['loss']:.2f}"
                ticker(said, done=before + step["step"], of=every)

            told, ranks, timeout_s = task_line(task), task.ranks, task.timeout_s
            results.append(
                launch("memorise", told, ranks=ranks, report=report, timeout_s=timeout_s)
            )
    return results


def _models(names: tuple[str, ...]) -> list[GPT]:
    if names:
        return [Sources().model(Question(model=name)) for name in names]
    return [
        GPT.of(
            name=name,
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=4 * hidden,
            sequence=SEQUENCE,
            vocab=256,
        )
        for name, (layers, hidden, heads) in SHAPES.items()
    ]


def _pair(gpt: GPT, how: dict[str, Any]) -> list[Memorisation]:
    """The model trained with the usual loss, and with Goldfish's."""
    from executor.data.corpus import check_text, read_text
    from executor.memorising.spec import Memorisation
    from workload.lowering import check

    keys = ("documents", "passes", "batch", "ranks", "lr", "seed", "threads", "timeout_s")
    given = {key: how[key] for key in keys} | {"text": how["data"]}
    check_text(read_text(how["data"]), gpt)
    fish = with_goldfish(gpt, how["goldfish_k"] or gpt.goldfish_k or GOLDFISH_K, how["goldfish_h"])
    usual = with_fields(gpt, {"goldfish_k": 0})
    tasks = [Memorisation(gpt=each, **given) for each in (usual, fish)]
    for task in tasks:
        task.check()
        check(task.gpt, task.plan)
    return tasks
