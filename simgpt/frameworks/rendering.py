"""A framework's settings as the text that it takes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.exporting import Exported
from simgpt.frameworks.files import BRIDGE, MEGATRON, TORCHTITAN


def rendered(exported: Exported) -> str:
    """Arguments for a shell, one a line; TOML, YAML or JSON."""
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
