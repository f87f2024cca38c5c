"""A framework's settings as the text that it takes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpt.frameworks.exported import Exported
from simgpt.frameworks.files import BRIDGE, FILE, MEGATRON, TORCHTITAN

COMMENTED = (MEGATRON, BRIDGE, TORCHTITAN)  # frameworks whose files have comments
UNCOMMENTED = (".json",)


FROM = "# exported by simgpt from the stack"
_FROM = re.compile(rf"^[ \t]*{FROM} (\S+)[ \t\r]*$", re.MULTILINE)


def rendered(exported: Exported) -> str:
    """Arguments for a shell, one a line; TOML, YAML or JSON. A comment at the end names the stack,
    where it is not the one that the settings are read as."""
    text = _rendered(exported)
    return f"{text}\n{FROM} {exported.stack}" if exported.stack else text


def exported_from(paths: Sequence[Path]) -> str | None:
    """The stack that comments of exported files name, if there is one."""
    texts = [FILE.text(path) for path in paths if path.suffix not in UNCOMMENTED]
    named = [stack for text in texts for stack in _FROM.findall(text)]
    return str(named[-1]) if named else None


def _rendered(exported: Exported) -> str:
    settings = exported.settings
    if exported.framework == MEGATRON:
        lines = [_argument(name, value) for name, value in settings.items() if value is not False]
        return " \\\n".join(lines)
    document = nested(settings)
    if exported.framework == TORCHTITAN:
        return "\n\n".join(_table(name, table) for name, table in document.items())
    if exported.framework == BRIDGE:
        import yaml

        return str(yaml.safe_dump(document, sort_keys=False)).rstrip()
    return json.dumps(document, indent=2)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with dotted names as tables within tables.

    >>> nested({"train.steps": 2, "train.batch.size": 3, "seed": 1})
    {'train': {'steps': 2, 'batch': {'size': 3}}, 'seed': 1}
    """
    document: dict[str, Any] = {}
    for name, value in settings.items():
        *above, last = name.split(".")
        table = document
        for key in above:
            table = table.setdefault(key, {})
        table[last] = value
    return document


def _argument(name: str, value: Any) -> str:
    """One argument; of a list each value is a word of its own, as argparse's `nargs` wants them."""
    values = value if isinstance(value, list) else [] if value is True else [value]
    return shlex.join([f"--{name}", *map(str, values)])


def _table(name: str, table: Mapping[str, Any]) -> str:
    """A table of TOML; JSON's texts, numbers, switches and lists of them are TOML's too."""
    rows = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join([f"[{name}]", *rows])
