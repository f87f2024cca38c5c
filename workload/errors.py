"""What can be wrong with a model or a plan, in the user's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus


class ModelError(SimgptError):
    """The model is unknown, or its description is malformed."""


class PlanError(SimgptError):
    """The plan's text cannot be read: an unknown key, a value of the wrong kind."""


class RestError(PlanError):
    """The plan has `dp=rest`, and nothing says how many devices there are."""


class PlanCannotRunError(SimgptError):
    """The plan is well formed, but this model cannot be split that way."""

    exit_code = ExitStatus.CANNOT_RUN


class NearestError(PlanCannotRunError):
    """One field of the plan, `key`, divides nothing with its `value`, for a reason `why`; the
    `others` are values with which it would, and the nearest of them below and above are named, as
    the field's own (`name`) where the reason is of a product; `instead` is what else would do."""

    def __init__(
        self,
        why: str,
        key: str,
        value: int,
        others: Iterable[int],
        name: str = "",
        instead: str = "",
    ) -> None:
        super().__init__(why, key, value, tuple(sorted(others)), name, instead)
        self.why, self.key, self.value, self.name, self.instead = why, key, value, name, instead
        self.others = tuple(sorted(others))

    def __str__(self) -> str:
        below = [each for each in self.others if each < self.value][-1:]
        above = [each for each in self.others if each > self.value][:1]
        near = " or ".join(map(str, below + above))
        found = [f"try {self.name or self.key}={near}"] if near else []
        words = [*found, *filter(None, [self.instead])]
        return "; ".join([self.why, ", or ".join(words)] if words else [self.why])

    def among(self, can: Callable[[int], bool]) -> NearestError:
        """The error that names only the nearest of its values that `can` be, if any can."""
        below = (each for each in reversed(self.others) if each < self.value)
        above = (each for each in self.others if each > self.value)
        near = [next(filter(can, each), None) for each in (below, above)]
        left = [each for each in near if each is not None]
        others = left or self.others
        return NearestError(self.why, self.key, self.value, others, self.name, self.instead)
