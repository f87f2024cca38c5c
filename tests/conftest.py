"""Settings of every test: hypothesis without deadlines (ranks share the cores) and with the same
examples in CI, and no golden file rewritten where a difference must fail."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings

from topologies.session import Session

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
# A mutation is noticed by whichever example fails; the smallest is not looked for.
settings.register_profile(
    "mutations",
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile(
    os.environ.get("SIMGPT_HYPOTHESIS") or ("ci" if os.environ.get("CI") else "local")
)


def pytest_configure() -> None:
    """Refuse to rewrite in CI what tests compare: they could not fail.

    A shell's background and nohup ignore signals, and so would every process that a test starts.
    No test, and no process that one starts, reads or writes what the user has kept of predictions.
    """
    os.environ["SIMGPT_CACHE"] = "off"
    for ignored, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(ignored) is signal.SIG_IGN:
            signal.signal(ignored, usual)
    if os.environ.get("CI") and os.environ.get("SIMGPT_REWRITE"):
        raise pytest.UsageError("SIMGPT_REWRITE rewrites what tests compare, and CI is set")


KEPT = Session()
# Of objects more than there are fewer: Python's own 700 has the collector run for a tenth of the
# time, looking for cycles in the programs that tests lower and let go of.
OBJECTS_BEFORE_COLLECTION = 100_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules load machines where they are imported, for what their tests are given."""
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    with KEPT:
        return (yield)


def pytest_collection_finish() -> None:
    """What is there now stays: thousands of tests, all modules, torch."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Pytest then collects garbage several times, which is none of what ends with the process."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def session() -> Iterator[None]:
    """One session for the tests of a process: they predict on the same few machines."""
    with KEPT:
        yield


@pytest.fixture(scope="module")
def forked_ranks() -> Iterator[None]:
    """Ranks are forked, which starts them sooner."""
    from tests.executor.forked_ranks import forked

    with forked():
        yield


@pytest.fixture
def figures_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of reports have no outlines of their figures, which are made all the same."""
    monkeypatch.setattr("validation.report.page.as_svg", lambda *_: "<svg></svg>")


@pytest.fixture
def few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`why` varies two numbers of a machine, where it would simulate a step for each of dozens."""
    from simulator.explain import sensitivity

    def two(*words: Any, **how: Any) -> list[sensitivity.MachineParameter]:
        return sensitivity.parameters(*words, **how)[:2]

    monkeypatch.setattr("simulator.explain.why.parameters", two)


@pytest.fixture
def exact_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world in which runs need just their predicted peak: what fits is known to the byte."""
    from simulator.uncertainty.fitting import EXACT

    monkeypatch.setattr("simulator.step_memory.peak_errors", lambda _: EXACT)
