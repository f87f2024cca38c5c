"""Finding and reading stacks.

The name of a stack may have options behind it, and the release that is meant: `nemo+deepep`,
`nemo+deepep+graphs=full`, `nemo@24.05`. A stack's file has a table for each of them, which stands
upon the stack's own tables (`simulator/stacks/usual.toml`). Of an option with values one is taken.
A release is the last of those that its table holds for; later ones are as the stack itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from simulator.stacks.stack import EXECUTOR, Stack, StackError
from simulator.stacks.stack_schema import (
    EXCLUDES,
    OPTIONS,
    OTHERWISE,
    RELEASES,
    TABLES,
    TEXTS,
    check_document,
)
from simulator.stacks.where import above
from topologies.files.reading import UserFile
from topologies.files.schema import nearest
from topologies.session import session_cached
from workload.grid import order_read
from workload.words.former_words import key_now, keys_now

FRAMEWORKS = {  # of frameworks and their parts, without hyphens, their stack of today
    **dict.fromkeys(("megatron", "megatronlm", "mcore", "megatroncore", "mlm"), "megatron-core"),
    **dict.fromkeys(("fsdp2", "pytorch", "torch", "titan", "pytorchfsdp"), "torchtitan"),
    **dict.fromkeys(("megatronbridge", "bridge", "nemo2", "nemorun", "dgxc"), "nemo"),
    **dict.fromkeys(("deepspeed", "zero", "megatronds", "ds"), "megatron-deepspeed"),
    **dict.fromkeys(("hf", "huggingface", "transformers", "trainer", "fsdp1"), "accelerate"),
    **dict.fromkeys(("composer", "mosaic", "mosaicml", "foundry"), "llm-foundry"),
    **dict.fromkeys(("neox", "gptneox"), "gpt-neox"),
    **dict.fromkeys(("deepep", "hybridep"), "megatron-core-deepep"),
}
USUAL = "usual"  # what stacks have in common; no stack itself
TITLES = ("title", "source")
FORMER = {  # names of before options, and what they are now
    "nemo-2023": "nemo@23.05",
    "nemo-2024": "nemo@24.05",
    "nemo-unfused": "nemo+unfused",
    "nemo-unfused-permutation": "nemo+unfused-permutation",
    "nemo-unfused-permutation-graphs": "nemo+unfused-permutation+graphs=router",
    "nemo-deepep": "nemo+deepep",
    "nemo-deepep-full-graphs": "nemo+deepep+fused-experts+graphs=full",
    **{
        f"nemo{deepep.replace('+', '-')}-{graphs}-graphs": f"nemo{deepep}+graphs={graphs}"
        for deepep in ("", "+deepep")
        for graphs in ("attn", "router", "full")
        if (deepep, graphs) != ("+deepep", "full")
    },
}
_RELEASE = re.compile(r"\d\d\.(0[1-9]|1[0-2])")
MOST_BASES = 8
_SHIPPED = Path(__file__).parent
_FILE = UserFile("stack", StackError)


@cache
def plain_names() -> list[str]:
    """The stacks that come with the package, without options, the default first."""
    names = sorted(path.stem for path in _SHIPPED.glob("*.toml") if path.stem != USUAL)
    return [EXECUTOR.name, *names]


@cache
def stack_names() -> list[str]:
    """The stacks that come with the package, with each option and each release alone, the default
    first."""
    found = [EXECUTOR.name]
    for name in plain_names()[1:]:
        own = _document(name)
        options, releases = own.get(OPTIONS, ()), own.get(RELEASES, ())
        found += [name, *(f"{name}+{each}" for each in options)]
        found += [f"{name}@{each}" for each in releases]
    return found


def is_shipped(name: str) -> bool:
    """Whether a stack comes with the package, whatever its options."""
    return _plain(FORMER.get(name, name)) in plain_names()


def load_stack(name_or_path: str) -> Stack:
    """A stack by its name, or from a TOML file, which may name another as its `base`.

    >>> load_stack("megatron-core").plan["zero"]
    1
    >>> load_stack("nemo+graphs=attn+deepep").name
    'nemo+deepep+graphs=attn'
    """
    name = FORMER.get(name_or_path, name_or_path)
    if name == EXECUTOR.name:
        return EXECUTOR
    return _shipped(name) if is_shipped(name) else _read(name)


@session_cached(64)
def _shipped(name: str) -> Stack:
    return _read(name)


def _read(name_or_path: str) -> Stack:
    document = _whole(name_or_path, ())
    name = document["name"]
    for word in TITLES:
        if not isinstance(document.get(word), str):
            raise StackError(f"the stack {name} has no {word}")
    return Stack(
        name=name,
        title=document["title"],
        source=document["source"],
        family=document["family"] or _plain(name),
        plan=document["plan"],
        vocabulary=document["vocabulary"],
        own_kernels=document["kernels"],
        can=document["can"],
        memory=document["memory"],
        log=document["log"],
        otherwise=_checked(name, document[OTHERWISE]),
        options=_titles(name),
    )


def _titles(name: str) -> dict[str, str]:
    """The options of a stack that comes with the package, and what each is."""
    options = _document(_plain(name)).get(OPTIONS, {}) if is_shipped(name) else {}
    return {each: str(own["title"]) for each, own in options.items()}


def _checked(name: str, others: Mapping[str, str]) -> Mapping[str, str]:
    """What a stack's file names otherwise, an option more (`+option`) or less (`-option`) of its
    own or a stack; a StackError where that is no stack of ours."""
    found = {words: _changed(name, other) for words, other in others.items()}
    for words, other in found.items():
        if not is_shipped(other):
            raise StackError(
                f'{name}: otherwise."{words}" must name a stack that comes with simgpt'
            )
    return found


def _changed(name: str, other: str) -> str:
    if other.startswith("+"):
        return f"{name}{other}"
    if not other.startswith("-"):
        return other
    less = [each.removeprefix("-") for each in other.split()]
    first, *options = name.split("+")
    return "+".join([first, *(each for each in options if each.partition("=")[0] not in less)])


def _whole(name: str, bases: tuple[str, ...]) -> dict[str, Any]:
    """A stack's document upon that of its base, table by table."""
    if name in bases or len(bases) > MOST_BASES:
        raise StackError(f"the stack {name} is its own base: {' -> '.join((*bases, name))}")
    own, whole_name = _with_options(name)
    base = own.get("base")
    if base is None:
        under: Mapping[str, Any] = {"can": EXECUTOR.can}
    elif base == EXECUTOR.name:
        under = {"can": EXECUTOR.can}
    else:
        beside = Path(name).parent / base if str(base).endswith(".toml") else base
        under = _whole(FORMER.get(str(beside), str(beside)), (*bases, name))
    family = own.get("family", under.get("family"))
    tables = {table: {**under.get(table, {}), **own.get(table, {})} for table in TABLES}
    tables["plan"] = above(under.get("plan", {}), own.get("plan", {}))
    tables[OTHERWISE] = dict(own.get(OTHERWISE, {}))
    return {
        **{word: own.get(word) for word in TEXTS},
        **tables,
        "family": family,
        "name": whole_name,
    }


def _plain(name: str) -> str:
    """A stack's name without options and release."""
    return name.partition("+")[0].partition("@")[0]


def _with_options(name: str) -> tuple[dict[str, Any], str]:
    """A stack's document with those of its options and its release upon it, and its name with
    options in the order of the file."""
    if name.endswith(".toml"):
        own = dict(_document(name))
        if given := own.keys() & {OPTIONS, RELEASES}:
            raise StackError(f"{Path(name).name}: only stacks of simgpt have {sorted(given)[0]}")
        return own, Path(name).stem
    first, *asked = name.split("+")
    plain, at, release = first.partition("@")
    own = dict(_document(plain))
    options, releases = own.pop(OPTIONS, {}), own.pop(RELEASES, {})
    _check_options(plain, options, asked)
    chosen = [each for each in options if each in asked]
    if of_release := _of_release(plain, releases, release) if at else {}:
        if asked:
            raise StackError(f"the stack {first} has no option {asked[0]}; options are of {plain}")
        texts = {word: of_release[word] for word in TITLES}
        return ({**of_release} if "base" in of_release else _upon(own, of_release)) | texts, first
    for each in chosen:
        own = _upon(own, options[each])
    return own, "+".join([first, *chosen])


def _check_options(plain: str, options: Mapping[str, Any], asked: Sequence[str]) -> None:
    """A StackError where options are unknown, or cannot be combined."""
    values: dict[str, str] = {}
    for each in asked:
        key = each.partition("=")[0]
        if each not in options:
            known = f"its options are {', '.join(options)}" if options else "it has no options"
            raise StackError(f"the stack {plain} has no option {each}; {known}")
        if key in values:
            raise StackError(f"the stack {plain} takes {key} once, not {values[key]} and {each}")
        values[key] = each
    for each in asked:
        for other in options[each].get(EXCLUDES, ()):
            if other in asked:
                raise StackError(f"{plain}+{each} cannot be combined with {other}")


def _of_release(plain: str, releases: Mapping[str, Any], release: str) -> Mapping[str, Any]:
    """The table of a release: of those that hold for it the first; none for a later one."""
    if not releases or not _RELEASE.fullmatch(release):
        known = f"a year and a month, as {next(iter(releases))}" if releases else "none"
        raise StackError(f"the stack {plain} has no release {release}; its releases are {known}")
    later = [each for each in sorted(releases) if each >= release]
    return releases[later[0]] if later else {}


def _upon(own: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A document with another upon it: titles and sources one behind the other, tables key by key;
    an empty table empties."""
    found = {**own, OTHERWISE: dict(more.get(OTHERWISE, {}))}
    found |= {word: f"{own[word]}; {more[word]}" for word in TITLES}
    for table in (each for each in TABLES if each in more):
        found[table] = _merged(own.get(table, {}), more[table])
    return found


def _merged(own: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(own)
    for key, value in more.items():
        before = own.get(key)
        if isinstance(value, Mapping) and value and isinstance(before, Mapping):
            found[key] = _merged(before, value)
        else:
            found[key] = value
    return found


def _nearest(name: str) -> str:
    """A hint at the stack of a framework, or at the one whose name looks most like this."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    known = plain if plain in plain_names() else FRAMEWORKS.get(plain.replace("-", ""))
    return f"; nearest: {known}" if known else nearest(plain, plain_names())


def _document(name: str) -> Mapping[str, Any]:
    path = Path(name)
    if path.suffix != ".toml":
        if name != USUAL and name not in plain_names():
            raise StackError(
                f'no stack is called "{name}"{_nearest(name)}; `simgpt stacks` lists all, or '
                "give a .toml file"
            )
        path = _SHIPPED / f"{name}.toml"
    document = _in_words_of_today(_FILE.document(path))
    check_document(document, path.name)
    return document


def _parts_in_words_of_today(document: Mapping[str, Any]) -> dict[str, Any]:
    """The documents of options and releases in words of today."""
    return {
        each: {name: _in_words_of_today(own) for name, own in document[each].items()}
        for each in (OPTIONS, RELEASES)
        if isinstance(document.get(each), Mapping)
    }


def _in_words_of_today(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stack's document with axes and fields of plans by their names of today."""
    found = {**document, **_parts_in_words_of_today(document)}
    found |= {table: keys_now(found[table]) for table in ("plan", "can") if table in found}
    vocabulary = found.get("vocabulary")
    if isinstance(vocabulary, Mapping) and "times_x" in vocabulary:
        found["vocabulary"] = {**vocabulary, "times_tp": vocabulary["times_x"]}
        del found["vocabulary"]["times_x"]
    can = found.get("can")
    if isinstance(can, dict):
        for key, now in (("axes", key_now), ("order", order_read)):
            if isinstance(can.get(key), list):
                can[key] = [now(each) if isinstance(each, str) else each for each in can[key]]
    return found
