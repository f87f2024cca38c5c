"""What can be wrong with a model or a plan, in the user's words."""

from __future__ import annotations

from topologies.errors import SimgptError


class ModelError(SimgptError):
    """The model is unknown, or its description is malformed."""


class PlanError(SimgptError):
    """The plan's text cannot be read: an unknown key, a value of the wrong kind."""


class RestError(PlanError):
    """The plan has `data=rest`, and nothing says how many devices there are."""


class PlanCannotRunError(SimgptError):
    """The plan is well formed, but this model cannot be split that way."""

    exit_code = 3
