"""Models by their names on Hugging Face's Hub, without a file and without a network: sizes that
come with the program, each from a public repository at a commit (`hub.toml`)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from topologies.files.reading import shipped_toml
from topologies.records import record
from workload.descriptions.configs.families import NULL
from workload.descriptions.described import Described, Note
from workload.descriptions.hugging_face import model_from_config
from workload.models.spelling import without_ends, words_of


@record
class Packaged:
    """The sizes of a repository of the Hub, as keys of a `config.json`, and where they were read:
    a repository of GitHub at a commit, and the file in it."""

    hub: str
    config: Mapping[str, Any]
    source: str


def hub_model(name: str) -> Described | None:
    """The model of a name on the Hub, with the notes of its config; None if it is not packaged.

    Ignored are case, suffixes such as -Instruct or -AWQ, and the organisation, unless two of them
    have a model of this name.

    >>> hub_model("TheBloke/pythia-1.4b-GGUF").gpt.name
    'pythia-1.4b'
    """
    found = _found(name)
    if found is None:
        return None
    own = found.hub.rpartition("/")[2].lower()
    described = model_from_config(found.config, f"the sizes of {found.hub}", name=own)
    gpt = replace(described.gpt, source=f"{found.hub} as in {found.source}")
    note = Note(f"its sizes are those of {found.hub} in {found.source}")
    return replace(described, gpt=gpt, notes=(note, *described.notes))


def hub_names() -> list[str]:
    """The names of all repositories of the Hub whose sizes are packaged."""
    return [each.hub for each in _packaged().values()]


def nearest_on_hub(name: str) -> str:
    """The end of a sentence on an unknown name: the most similar names on the Hub, or ""."""
    own = {hub.rpartition("/")[2].lower(): hub for hub in hub_names()}
    near = difflib.get_close_matches(name.lower().rpartition("/")[2], own, n=3, cutoff=0.8)
    return f"; similar names on the Hub: {', '.join(own[each] for each in near)}" if near else ""


def _found(name: str) -> Packaged | None:
    """The sizes of a name: as it is spelled, or else by its words, then without its ends."""
    if (exact := _packaged().get(name.lower())) is not None:
        return exact
    words, by_words = words_of(name), _by_words()
    if not words:
        return None
    return by_words.get(words) or by_words.get(without_ends(words))


@cache
def _packaged() -> dict[str, Packaged]:
    """All sizes by their names in small letters."""
    sources = shipped_toml("workload", "descriptions/hub.toml").values()
    return {
        hub.lower(): Packaged(hub, _with_nulls(config), each["source"])
        for each in sources
        for hub, config in each["models"].items()
    }


def _with_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config of which a table in TOML has "null" for null."""
    return {key: None if value == NULL else value for key, value in config.items()}


@cache
def _by_words() -> dict[tuple[str, ...], Packaged]:
    """The sizes by the words of their names, with and without their ends; of several the one with
    the shortest name, which is a family's first release."""
    longest_first = sorted(_packaged().values(), key=lambda each: -len(each.hub))
    without = {without_ends(words_of(each.hub)): each for each in longest_first}
    return without | {words_of(each.hub): each for each in longest_first}
