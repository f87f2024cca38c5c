"""Settings of a file that a command line changes: Hydra's `section.name=value` for NeMo and
Megatron-Bridge, `--section.name value` for torchtitan.

Sources: facebookresearch/hydra 1.3, website/docs/advanced/override_grammar/basic.md;
pytorch/torchtitan 0.2.1, torchtitan/config/manager.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simgpt.frameworks.reading import FrameworkError
from topologies.files.reading import MOST_DEPTH

_OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w/@-]*(?:\.[\w/@-]+)*)(?:=(.*))?", re.DOTALL)
MOST_CHARACTERS = 2**12  # of a value that is parsed
FILE_NAMES = ("config-name", "config-file", "job.config-file", "config", "recipe")
_NOT = re.compile(r"(^|\.)no_")
_FLAG = re.compile(r"--[A-Za-z][\w-]*\.")


def overridden(words: Sequence[str]) -> dict[str, Any]:
    """The table that Hydra's overrides among a command's words make; `~name` is null.

    >>> overridden(["--config-name", "a", "model.layers=4", "+model.optim={lr: 1}", "~log"])
    {'model': {'layers': '4', 'optim': {'lr': '1'}}, 'log': None}
    """
    found: dict[str, Any] = {}
    for word in words:
        each = _OVERRIDE.fullmatch(word)
        if each and (each[3] is not None or each[1] == "~"):
            value = None if each[1] == "~" else _value(each[3])
            found = merged(found, _nested(each[2].partition("@")[0].split("."), value))
    return found


def of_flags(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The table of torchtitan's that dotted flags make; `--section.no-name` is off.

    >>> of_flags({"training.local-batch-size": "4", "compile.no-enable": True, "seed": "1"})
    {'training': {'local_batch_size': '4'}, 'compile': {'enable': False}}
    """
    found: dict[str, Any] = {}
    for flag, value in settings.items():
        name = flag.replace("-", "_")
        if "." in name:
            off = value is True and _NOT.search(name)
            path = _NOT.sub(r"\1", name) if off else name
            found = merged(found, _nested(path.split("."), False if off else value))
    return found


def has_dotted_flags(words: Sequence[str]) -> bool:
    """Whether a command line has options of sections."""
    return any(map(_FLAG.match, words))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables as one: where both have a value, that of the one above."""
    found = dict(below)
    for key, value in above.items():
        before = found.get(key)
        is_deeper = isinstance(before, Mapping) and isinstance(value, Mapping)
        found[key] = merged(dict(before or {}), value) if is_deeper else value
    return found


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    if len(path) > MOST_DEPTH:
        raise FrameworkError(f"{'.'.join(path[:3])}… is nested more than {MOST_DEPTH} deep")
    for name in reversed(path):
        value = {name: value}
    found: dict[str, Any] = value
    return found


def _value(text: str) -> Any:
    """An override's value: a table, a list, or a text whose quotes are read."""
    text = text.strip()
    if text[:1] not in ("[", "{", "'", '"') or len(text) > MOST_CHARACTERS:
        return text
    from omegaconf.errors import OmegaConfBaseException
    from omegaconf.grammar_parser import parse
    from omegaconf.grammar_visitor import GrammarVisitor

    try:
        tree = parse(text, parser_rule="singleElement", lexer_mode="VALUE_MODE")
        return _texts(GrammarVisitor(None, None, None).visit(tree))
    except (OmegaConfBaseException, RecursionError, AssertionError):
        return text


def _texts(value: Any) -> Any:
    """A value whose numbers are texts, as those of a YAML are."""
    if isinstance(value, Mapping):
        return {str(key): _texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return value if value is None or isinstance(value, bool) else str(value)
