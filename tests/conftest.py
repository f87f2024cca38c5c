"""Settings of every test: hypothesis without deadlines (ranks share the cores) and with the same
examples in CI, and no golden file rewritten where a difference must fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

from topologies.session import Session

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
# A mutation is noticed by whichever example fails; the smallest is not looked for.
settings.register_profile(
    "mutants",
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


@pytest.fixture(autouse=True, scope="session")
def session() -> Iterator[None]:
    """One session for the tests of a process: they predict on the same few machines."""
    with Session():
        yield
