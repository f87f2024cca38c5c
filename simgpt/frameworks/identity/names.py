"""Names by which a file can be known: keys of a table, a script's commands, a program's imports.

Nothing is executed; a Python file is parsed alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from simgpt.frameworks.reading import text_of
from topologies.records import record

LONGEST = 200  # letters of a value that is compared
MOST_PYTHON = 2**18  # characters of a program that is parsed, to hundreds of bytes each
MODULE = ("-m", "--module")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)


@record
class Names:
    """What a file says, as names: dotted `keys` with their values, a program's `flags` with theirs,
    `commands` whose words stand between blanks, `programs` that are started, packages that a
    Python file `imports`. All but flags have underscores for dashes."""

    keys: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


def of_document(document: Mapping[str, Any]) -> Names:
    """The names of a table; those that begin with dashes are a program's flags.

    >>> of_document({"model": {"layers": 2}, "data": [{"path": "x"}]}).keys
    {'model': '', 'model.layers': '2', 'data': '', 'data[].path': 'x'}
    """
    keys: dict[str, str] = {}
    flags: dict[str, str] = {}
    for name, value in _nested(document, ""):
        leaf = name.rpartition(".")[2]
        if leaf.startswith("--"):
            flags[leaf[2:]] = value
        else:
            keys[name.replace("-", "_")] = value
    return Names(keys, flags)


def of_script(commands: Sequence[Sequence[str]]) -> Names:
    """The names of a script's commands: `--name value`, `name=value` and what is started.

    >>> names = of_script([["srun", "tune", "run", "full.py", "--nodes", "2", "model.size=8"]])
    >>> names.programs[0], names.flags, names.keys
    ('full.py', {'nodes': '2'}, {'model.size': '8'})
    """
    keys: dict[str, str] = {}
    flags: dict[str, str] = {}
    programs: list[str] = []
    for words in commands:
        programs += _programs(words)
        for at, word in enumerate(words):
            name, equals, value = word.lstrip("-").partition("=")
            following = words[at + 1] if at + 1 < len(words) else ""
            if word.startswith("--") and name:
                flags[name] = value if equals else "" if following.startswith("--") else following
                if "." in name:
                    keys[name.replace("-", "_")] = flags[name]
            elif found := _OVERRIDE.fullmatch(word):
                keys[found[1].replace("-", "_")] = found[2][:LONGEST]
    lines = tuple(f" {' '.join(map(_word, words))} " for words in commands)
    return Names(keys, flags, lines, tuple(programs))


def of_python(text: str) -> Names:
    """The names of a program in Python: packages, and what it assigns tables to.

    >>> of_python("from a.b import c; parallel = dict(zero=1)").imports
    ('a.b',)
    """
    if len(text) > MOST_PYTHON:
        return Names()
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Names()
    imports: list[str] = []
    keys: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.Import):
            imports += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports.append(node.module)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            keys |= dict(_assigned(node.targets[0].id, node.value))
    return Names(keys, imports=tuple(imports))


def _assigned(name: str, value: ast.expr) -> Iterator[tuple[str, str]]:
    """The names of `name = dict(…)`, of a table in braces, and of a plain value."""
    yield name, str(value.value) if isinstance(value, ast.Constant) else ""
    if isinstance(value, ast.Call):
        for each in value.keywords:
            if each.arg:
                yield from _assigned(f"{name}.{each.arg}", each.value)
    elif isinstance(value, ast.Dict):
        for key, inner in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield from _assigned(f"{name}.{key.value}", inner)


def _nested(document: Any, above: str) -> Iterator[tuple[str, str]]:
    """The dotted names of a table and of what is in it; of a table in a list with `[]`."""
    for key, value in document.items():
        name = f"{above}{key}"
        tables = value if isinstance(value, list) else []
        plain = not isinstance(value, Mapping) and not any(isinstance(t, Mapping) for t in tables)
        yield name, text_of(value)[:LONGEST] if plain else ""
        if isinstance(value, Mapping):
            yield from _nested(value, f"{name}.")
        for each in tables:
            if isinstance(each, Mapping):
                yield from _nested(each, f"{name}[].")


def _programs(words: Sequence[str]) -> Iterator[str]:
    """The Python files and modules of a command, and each with the word after it."""
    for at, word in enumerate(words):
        of_module = at and words[at - 1] in MODULE and re.match(r"[A-Za-z_][\w.]*$", word)
        if word.endswith(".py") or of_module:
            path = word.removeprefix("./").replace("-", "_")
            yield path
            yield " ".join([path, *(each.replace("-", "_") for each in words[at + 1 : at + 2])])


def _word(word: str) -> str:
    """A command's word without its folders, dashes as underscores."""
    return word.rstrip("/").rpartition("/")[2].replace("-", "_")
