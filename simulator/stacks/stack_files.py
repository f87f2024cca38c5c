"""Finding and reading stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from simulator.stacks.stack import EXECUTOR, Stack, StackError
from simulator.stacks.stack_schema import OTHERWISE, TABLES, TEXTS, check_document
from simulator.stacks.where import above
from topologies.files.reading import UserFile
from topologies.files.schema import nearest
from topologies.session import session_cached
from workload.grid import order_read
from workload.splits.former_words import key_now, keys_now

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
MOST_BASES = 8
_SHIPPED = Path(__file__).parent
_FILE = UserFile("stack", StackError)


@cache
def stack_names() -> list[str]:
    """The stacks that come with the package, the default first."""
    names = sorted(path.stem for path in _SHIPPED.glob("*.toml") if path.stem != USUAL)
    return [EXECUTOR.name, *names]


def load_stack(name_or_path: str) -> Stack:
    """A stack by its name, or from a TOML file, which may name another as its `base`.

    >>> load_stack("megatron-core").plan["zero"]
    1
    """
    if name_or_path == EXECUTOR.name:
        return EXECUTOR
    return _shipped(name_or_path) if name_or_path in stack_names() else _read(name_or_path)


@session_cached(64)
def _shipped(name: str) -> Stack:
    return _read(name)


def _read(name_or_path: str) -> Stack:
    document = _whole(name_or_path, ())
    name = Path(name_or_path).stem
    for word in ("title", "source"):
        if not isinstance(document.get(word), str):
            raise StackError(f"the stack {name} has no {word}")
    return Stack(
        name=name,
        title=document["title"],
        source=document["source"],
        family=document["family"] or name,
        plan=document["plan"],
        vocabulary=document["vocabulary"],
        own_kernels=document["kernels"],
        can=document["can"],
        memory=document["memory"],
        log=document["log"],
        otherwise=_checked(name, document[OTHERWISE]),
    )


def _checked(name: str, others: Mapping[str, str]) -> Mapping[str, str]:
    """What a stack's file names otherwise; a StackError where that is no stack of ours."""
    for words, other in others.items():
        if other not in stack_names():
            raise StackError(
                f'{name}: otherwise."{words}" must name a stack that comes with simgpt'
            )
    return others


def _whole(name: str, bases: tuple[str, ...]) -> dict[str, Any]:
    """A stack's document upon that of its base, table by table."""
    if name in bases or len(bases) > MOST_BASES:
        raise StackError(f"the stack {name} is its own base: {' -> '.join((*bases, name))}")
    own = _document(name)
    base = own.get("base")
    if base is None:
        under: Mapping[str, Any] = {"can": EXECUTOR.can}
    elif base == EXECUTOR.name:
        under = {"can": EXECUTOR.can}
    else:
        beside = Path(name).parent / base if str(base).endswith(".toml") else base
        under = _whole(str(beside), (*bases, name))
    family = own.get("family", under.get("family"))
    tables = {table: {**under.get(table, {}), **own.get(table, {})} for table in TABLES}
    tables["plan"] = above(under.get("plan", {}), own.get("plan", {}))
    tables[OTHERWISE] = dict(own.get(OTHERWISE, {}))
    return {**{word: own.get(word) for word in TEXTS}, **tables, "family": family}


def _nearest(name: str) -> str:
    """A hint at the stack of a framework, or at the one whose name looks most like this."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    known = plain if plain in stack_names() else FRAMEWORKS.get(plain.replace("-", ""))
    return f"; nearest: {known}" if known else nearest(plain, stack_names())


def _document(name: str) -> Mapping[str, Any]:
    path = Path(name)
    if path.suffix != ".toml":
        if name != USUAL and name not in stack_names():
            raise StackError(
                f'no stack is called "{name}"{_nearest(name)}; `simgpt stacks` lists all, or '
                "give a .toml file"
            )
        path = _SHIPPED / f"{name}.toml"
    document = _in_words_of_today(_FILE.document(path))
    check_document(document, path.name)
    return document


def _in_words_of_today(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stack's document with axes and fields of plans by their names of today."""
    found = dict(document)
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
