"""The activation that a `config.json` of Hugging Face names, and what it counts as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workload.descriptions.configs.config import Config


def activation_of(config: Config, tables: Mapping[str, Any]) -> str:
    """The model's activation; a ModelError names one that simgpt has no similar one for."""
    own: str = config.row["fixed"]["activation"]
    if not config.activation_key:
        return own
    name, known = config.get(config.activation_key), tables["activations"][own]
    if isinstance(name, str):
        for field in known:
            if field not in ("exact", "near", "text") and name in known[field]:
                return str(field)
        if name in known["exact"] or name in known.get("near", []):
            return own
    config.wrong(
        config.activation_key, name, f"is not modelled in {config.family}; {known['exact'][0]} is"
    )


def near_to(config: Config, tables: Mapping[str, Any]) -> str:
    """A note on which activation stands for the config's; "" if it is the same."""
    known = tables["activations"][config.row["fixed"]["activation"]]
    key = config.activation_key
    return str(known["text"]) if key and config.get(key) in known.get("near", []) else ""
