"""How long one training step of a GPT takes on a machine, what limits it, and the same step run.

Each function asks what the command of its name asks (`machine` and `model`: `simgpt machines` and
`simgpt models`), with the same options, and its result has the same JSON. docs/python.md shows how.

>>> import simgpt
>>> result = simgpt.predict("gpt-5b", "frontier", "z=16,data=rest", devices=512, batch=512)
>>> result.fits
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.errors import SimgptError
from topologies.session import Session

if TYPE_CHECKING:
    from simgpt.api.functions import (
        machine,
        model,
        plan_run,
        predict,
        report,
        search,
        sweep,
        validate,
        why,
    )

    __version__: str

__all__ = [
    "Session",
    "SimgptError",
    "__version__",
    "machine",
    "model",
    "plan_run",
    "predict",
    "report",
    "search",
    "sweep",
    "validate",
    "why",
]


if not TYPE_CHECKING:  # to which every name would be one of this module

    def __getattr__(name: str) -> object:
        """What is asked for is imported then, so that `import simgpt` takes no time."""
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("simgpt")
            except PackageNotFoundError:
                return "unknown"
        if name not in __all__:
            raise AttributeError(f"module 'simgpt' has no attribute {name!r}")
        from simgpt.api import functions

        return getattr(functions, name)


def __dir__() -> list[str]:
    return __all__
