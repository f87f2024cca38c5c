"""How long one training step of a GPT takes on a machine, what limits it, and the same step run.

Each function asks what the command of its name asks (`machine` and `model`: `simgpt machines` and
`simgpt models`), with the same options, and its result has the same JSON. docs/python.md shows how.

>>> import simgpt
>>> result = simgpt.predict("gpt-5b", "frontier", "z=16,dp=rest", devices=512, batch=512)
>>> result.fits
True
"""

import sys

# `python -m simgpt` has Python look for every module in the current folder first, whose `typing.py`
# or `topologies/` must not run. So nothing, `__future__` neither, is imported before it is taken
# off the path, unless the folder is where this package was found.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    _asked_for = sys.orig_argv[len(sys.orig_argv) - len(sys.argv)].removeprefix("-m")
    if _asked_for in ("simgpt", "simgpt.__main__") and __path__ != [f"{sys.path[0]}/simgpt"]:
        del sys.path[0]

__all__ = [
    "Question",
    "Session",
    "SimgptError",
    "__version__",
    "bench_network",
    "calibrate",
    "compare",
    "export",
    "import_job",
    "machine",
    "model",
    "plan_run",
    "predict",
    "report",
    "run",
    "sbatch",
    "search",
    "stack",
    "sweep",
    "validate",
    "why",
]


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
    if name == "SimgptError":
        from topologies.errors import SimgptError

        return SimgptError
    if name == "Session":
        from topologies.session import Session

        return Session
    if name == "Question":
        from simgpt.question import Question

        return Question
    from simgpt.api import jobs, lookups, steps

    return next(getattr(each, name) for each in (steps, jobs, lookups) if hasattr(each, name))


def __dir__() -> list[str]:
    return __all__
