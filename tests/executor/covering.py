"""Models and plans drawn from every option at once, and few of them in which all pairs meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import lcm, prod
from typing import Any

from tests.executor.test_parity import BATCH, TINY
from tests.executor.test_parity_models import TOGETHER
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.grid import AXES
from workload.lowering import check
from workload.overlaps import OVERLAPS
from workload.plan import Plan
from workload.splits.plan_values import CHOICES

Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]
Case = tuple[GPT, Plan]

TRIES = 30
MODELS = {
    "GPT": TINY,
    "untied GPT": replace(TINY, tied=False),
    "Llama": TOGETHER["Llama"],
    "Qwen": TOGETHER["Qwen"],
    "BLOOM": TOGETHER["BLOOM"],
}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4),
    "y": (1, 2, 4),
    "z": (1, 2, 4),
    "cp": (1, 2, 4),
    "context_kind": CHOICES["context_kind"],
    "dp": (1, 2, 3, 4),
    "pp": (1, 2, 3, 4, 8),
    "vpp": (1, 2, 3),
    "schedule": ("1f1b", "gpipe", "zb-h1", "zb-1p", "zb-2p"),
    "split": ("even", "uneven", "ends"),
    "zero": (0, 1, 2, 3),
    "shard": (0, 2),
    "reshard": (True, False),
    "offload": ("none", "optimizer", "update"),
    "sp": (False, True),
    "attention": ("flash", "unfused"),
    "recompute": ("none", "selective", "full", "full:1"),
    "overlap": (
        OVERLAPS,
        (),
        ("oar", "ors"),
        ("oag", "dp"),
        ("ors", "dp", "pp"),
        ("oar", "oag", "pp"),
    ),
    "micro_batches": (1, 2, 4, 6),
    "model": tuple(MODELS),
    "dropout": (0.0, 0.1),
}
PLAIN = {"vpp", "schedule", "zero", "shard", "reshard", "offload", "sp"}
PLAIN |= {*AXES, "context_kind", "attention", "recompute", "overlap"}


def case(row: Row) -> Case:
    """The model and the plan of a row; a PlanError or PlanCannotRunError says why not."""
    chunks = row["pp"] * row["vpp"]
    cells = row["z"] * row["dp"] * row["micro_batches"]
    layers, counts = _layers(row["split"], chunks)
    batch = lcm(BATCH, cells)
    plan = Plan.of(
        **{name: row[name] for name in PLAIN},
        stage_layers=counts,
        ends_as_layers=row["split"] == "ends",
        batch=batch,
        mbs=batch // cells,
        precision="fp64",
    )
    gpt = replace(MODELS[row["model"]], layers=layers, dropout=row["dropout"])
    check(gpt, plan)
    return gpt, plan


def _layers(split: str, chunks: int) -> tuple[int, tuple[int, ...]]:
    """How many layers there are in all, and in each chunk where the plan says so."""
    each = 2 if chunks <= 2 else 1
    if split == "even":
        return each * chunks, ()
    if split == "ends":
        return 2 * chunks - 2 if 1 < chunks <= 4 else max(chunks - 2, 1), ()
    counts = [(1, 2, 0)[number % 3] for number in range(chunks)]
    return sum(counts), tuple(counts)


def is_legal(row: Row) -> bool:
    """Whether there is such a plan."""
    try:
        case(row)
    except (PlanError, PlanCannotRunError):
        return False
    return True


def ranks_of(row: Row) -> int:
    """How many ranks the plan of a row has; axes left out count as 1."""
    return prod(row.get(axis, 1) for axis in AXES)


def pairs(row: Row) -> Iterator[Pair]:
    """Every two options of a row with their values, in the order of OPTIONS."""
    return itertools.combinations([(name, row[name]) for name in OPTIONS], 2)


def every_pair() -> Iterator[Pair]:
    """All pairs of values of two options."""
    for (one, firsts), (two, seconds) in itertools.combinations(OPTIONS.items(), 2):
        yield from (((one, a), (two, b)) for a, b in itertools.product(firsts, seconds))


def is_refused(row: Row) -> bool:
    """Whether what is known of a row breaks a rule, whatever the rest may be."""
    turns = row.get("vpp", 1) > 1
    return (
        (turns and (row.get("pp") == 1 or row.get("schedule", "1f1b") != "1f1b"))
        or (turns and row.get("micro_batches", 0) % row.get("pp", 1) > 0)
        or (turns and row.get("micro_batches") == 1)
        or (row.get("sp", False) and row.get("y", 1) > 1)
        or (row.get("attention") == "unfused" and row.get("cp", 1) > 1)
        or (row.get("shard", 0) > 0 and row.get("zero") == 0)
        or (row.get("shard", 0) > 0 and row.get("dp", 2) % 2 > 0)
    )


@cache
def covering(ranks: int) -> list[Row]:
    """Rows of at most so many ranks in which every two options meet in all values that they can.

    Greedy: a missing pair is completed option by option, at random, with preference for values that
    bring more missing pairs; of a few such rows the one that brings most is taken.
    """
    chance = random.Random(ranks)
    missing = dict.fromkeys(every_pair())
    rows: list[Row] = []
    while missing:
        wanted = next(iter(missing))
        tries = TRIES if _is_possible(dict(wanted), ranks) else 0
        drawn = [_completed(dict(wanted), missing, chance, ranks) for _ in range(tries)]
        found = [row for row in drawn if row and is_legal(row)]
        missing.pop(wanted)
        if found:
            rows.append(max(found, key=lambda row: sum(pair in missing for pair in pairs(row))))
            for pair in pairs(rows[-1]):
                missing.pop(pair, None)
    return rows


def _completed(
    row: Row, missing: dict[Pair, None], chance: random.Random, ranks: int
) -> Row | None:
    names = [name for name in OPTIONS if name not in row]
    chance.shuffle(names)
    for name in names:
        values = [value for value in OPTIONS[name] if _is_possible({**row, name: value}, ranks)]
        if not values:
            return None
        gains = [_gain(row, name, value, missing) for value in values]
        row[name] = chance.choices(values, [1 + gain for gain in gains])[0]
    return row


def _gain(row: Row, name: str, value: Any, missing: dict[Pair, None]) -> int:
    """How many missing pairs a further value makes with those of a row."""
    new = (name, value)
    return sum((new, old) in missing or (old, new) in missing for old in row.items())


def _is_possible(row: Row, ranks: int) -> bool:
    return ranks_of(row) <= ranks and not is_refused(row)
