"""What expressions, statements and known functions ask of the evaluator that follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.journal import Container, Journal
from simgpt.frameworks.recipe_code.values import Class, External, Module, Place, Scope, Thing


class Evaluation(Protocol):
    """A recipe's evaluation as it stands; evaluator.py implements it."""

    checkout: Checkout
    device: dict[str, Any]
    models: Callable[[str], Mapping[str, Any]]
    journal: Journal
    model_name: str
    words: dict[str, Any]
    command: Sequence[str]
    taken: list[Any]

    def step(self) -> None:
        """Count one node."""

    def note(self, place: Place, why: str) -> None:
        """Remember what is left out at a place."""

    def write(self, container: Container, key: Any, value: Any) -> None:
        """Set an entry of a container, so that it can be put back."""

    def module(self, name: str) -> Module | External:
        """A module of the checkout, or the name of another one."""

    def lookup(self, name: str, scope: Scope, place: Place) -> Any:
        """The value of a name."""

    def attribute(self, value: Any, name: str, place: Place) -> Any:
        """An attribute of any value."""

    def classes(self, cls: Class) -> list[Class]:
        """A class and its bases that are in the checkout."""

    def bases_outside(self, cls: Class) -> list[str]:
        """Names of the bases of a class that are not in the checkout."""

    def takes(self, config: Thing, name: str) -> bool:
        """Whether what a configuration calls has a parameter of a name."""

    def call(self, called: Any, given: list[Any], named: dict[str, Any], place: Place) -> Any:
        """What a call gives."""
