"""YAML that users hand in: tables, lists and texts, and nothing that a tag or a word could make of
them."""

from __future__ import annotations

from typing import Any

import yaml

from topologies.files.budget import Budget
from topologies.files.reading import MOST_DEPTH, UserFile

MOST_CHARACTERS = 2**18  # the parser takes some 20 seconds for a MiB
MERGE = "<<"
MOST_NODES = 40_000  # about a second


class _Texts(yaml.BaseLoader):  # type: ignore[misc]
    """Every scalar is its text: no dates, no octal numbers, no `yes` for true, no objects."""

    def __init__(self, text: str, budget: Budget) -> None:
        super().__init__(text)
        self._budget = budget
        self._sizes: dict[str, int] = {}  # of nodes with an anchor

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node; an alias is charged for all that it stands for, so that tables that hold each
        other's aliases do not grow beyond any memory."""
        event = self.peek_event()
        if isinstance(event, yaml.events.AliasEvent):
            self._budget.charge(self._sizes.get(event.anchor, 1))
            return super().compose_node(parent, index)
        before = self._budget.spent
        self._budget.charge(1)
        node = super().compose_node(parent, index)
        if event.anchor is not None:
            self._sizes[event.anchor] = self._budget.spent - before
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A table, with what it merges (`<<: *name`) below its own keys."""
        found: dict[Any, Any] = super().construct_mapping(node, deep=True)
        merged = found.pop(MERGE, None)
        for each in merged if isinstance(merged, list) else [merged]:
            if isinstance(each, dict):
                found = {**each, **found}
        return found


def yaml_texts(file: UserFile, text: str, origin: str) -> Any:
    """What a text in YAML says, every value as text; `origin` names it in sentences.

    >>> from topologies.errors import SimgptError
    >>> yaml_texts(UserFile("recipe", SimgptError), "model: {layers: 12, tied: no}", "r.yaml")
    {'model': {'layers': '12', 'tied': 'no'}}
    """
    if len(text) > MOST_CHARACTERS:
        raise file.error(f"{origin} is longer than {MOST_CHARACTERS:,} characters, as no recipe is")
    try:
        loader = _Texts(text, Budget(origin, "values", MOST_NODES, file.error))
        document = loader.get_single_data()
    except RecursionError:
        raise file.error(f"{origin} is nested more than {MOST_DEPTH} deep") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or "it cannot be read"
        raise file.error(f"{origin} is not valid YAML{where}: {why}") from None
    return file.checked([document], origin)[0]
