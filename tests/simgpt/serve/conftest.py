"""A server of the page, in a thread of the tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from simgpt.commands.serve import changes
from simgpt.commands.serve.server import PageServer


@pytest.fixture(scope="module")
def running() -> Iterator[PageServer]:
    """One for all tests of a module."""
    with PageServer() as made:
        thread = threading.Thread(target=made.serve)
        thread.start()
        yield made
        made.stop()
        thread.join()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, all plans near one are tried."""
    monkeypatch.setattr(changes, "LIMIT_S", 3600.0)
