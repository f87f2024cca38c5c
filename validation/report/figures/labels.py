"""What tells answers apart, in as few words as it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from validation.report.provenance import is_fp8, shown
from validation.report.read_prediction import Answer
from workload.grid import AXES
from workload.plan import Plan
from workload.words.former_words import key_now

WIDTH = 46  # characters of a line, so that long labels leave room for the bars
LONGEST = 34  # of one value: a longer one loses its middle
LINES = 3
FILE = "from"
FIRST, LAST = ("model", "devices", "machine"), ("batch", FILE)
HOW = ("stack", "placement", "compute")
PLANS = 3  # the rank of a plan's parts
FOLLOWS = ("dp", *LAST)  # left out where the keys before tell all answers apart
PLAN = tuple(Plan.KEYS)
SIZES = (*AXES, "vpp", "ep", "zero")  # left out of a plan's text where they are at their default
USUAL = {
    key: str(each.default).lower()
    for key, each in Plan.KEYS.items()
    if isinstance(each.default, bool | str) or key in SIZES
}


def labels(answers: Sequence[Answer], among: Sequence[Answer] = ()) -> list[str]:
    """For each answer the parts that tell it from the others, in lines. What all share is left out,
    and so is the data parallelism where it follows from the rest.

    Where the answers are some `among` more, what all of those share is left out. The file is named
    only where it is needed to tell the answers themselves apart.
    """
    traits = [_traits(answer) for answer in answers]
    every = [_traits(answer) for answer in among] or traits
    telling: list[str] = []
    keys = dict.fromkeys(key for each in every for key in each)
    for key in sorted(keys, key=_place):  # those that may follow from others last
        before = telling if key in FOLLOWS else []
        told = traits if key == FILE else every
        if _classes(told, [*before, key]) > _classes(told, before):
            telling.append(key)
    return [_words(each, telling or FIRST) for each in traits]


def _classes(traits: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(each.get(key) for key in keys) for each in traits})


def _traits(answer: Answer) -> dict[str, str]:
    """All that an answer is an answer to, what people look for first before the rest."""
    asked = answer.asked
    said = (word.partition("=")[::2] for word in answer.plan.split(","))
    plan = {**USUAL, **{key_now(key): value for key, value in said}}
    plan |= {"precision": "fp8"} if is_fp8(asked) else {}
    return {
        "model": answer.model.partition(" with ")[0],
        "devices": f"{answer.devices:,}",
        "machine": answer.machine.partition(" with ")[0],
        **{
            key: shown(value) for key, value in (*asked["model_set"].items(), *asked["set"].items())
        },
        **{key: asked[key] for key in HOW},
        **({"routing": asked["routing"]} if asked["routing"] else {}),
        **plan,
        "batch": f"{answer.batch:,}",
        FILE: answer.origin,
    }


def _rank(key: str) -> int:
    """Changes of the model and the machine, which only some have, come before the plan."""
    ranks = {FIRST: 0, LAST: 4, HOW: 2, PLAN: PLANS}
    return next((rank for keys, rank in ranks.items() if key in keys), 1)


def _place(key: str) -> tuple[bool, int, int]:
    """Where a key stands: by its rank, keys of a plan as a plan has them."""
    return key in FOLLOWS, _rank(key), PLAN.index(key) if key in PLAN else 0


def _words(traits: Mapping[str, str], telling: Sequence[str]) -> str:
    """`gpt-5b, 512 × frontier, z=4`."""
    words = [_cut(traits["model"])] if "model" in telling else []
    if {"devices", "machine"} <= {*telling}:
        words.append(f"{traits['devices']} × {_cut(traits['machine'])}")
    elif "devices" in telling:
        words.append(f"{traits['devices']} {'device' if traits['devices'] == '1' else 'devices'}")
    elif "machine" in telling:
        words.append(_cut(traits["machine"]))
    others = [key for key in telling if key not in FIRST]
    words += [f"{key}={_cut(traits[key])}" if key in traits else f"usual {key}"
              for key in others]  # fmt: skip
    return _lines(words)


def _cut(value: str) -> str:
    half = LONGEST // 2
    return value if len(value) <= LONGEST else f"{value[:half]}…{value[-half + 1 :]}"


def _lines(words: Sequence[str]) -> str:
    lines = [""]
    for word in words:
        joined = f"{lines[-1]}, {word}" if lines[-1] else word
        if len(joined) > WIDTH and lines[-1] and len(lines) < LINES:
            lines[-1] += ","
            lines.append(word)
        else:
            lines[-1] = joined
    lines[-1] = lines[-1] if len(lines[-1]) <= 2 * WIDTH else f"{lines[-1][: 2 * WIDTH]}…"
    return "\n".join(lines)
