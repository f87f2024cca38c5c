"""Sessions: whatever is kept from one call to the next belongs to one, and ends with it.

A command enters a session, and so does a worker process for its life. Calls from Python outside of
any session share one that lives as long as the process, so that scripts and notebooks keep
machines, rings, networks and lowered programs from one prediction to the next; `with Session():`
keeps them apart, and lets go of them at its end. Without a session, cached functions compute anew.

What a session keeps, and what a prediction makes, has hardly any cycles: looking for them would be
a quarter of the time, so the garbage collector is paused meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from threading import get_ident
from typing import Any, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

MOST_OWNED = 32  # instances of a session, of all its threads
Given = ParamSpec("Given")
Found = TypeVar("Found")


@runtime_checkable
class Saved(Protocol):
    """What a session owns that outlives it."""

    def save(self) -> None:
        """Write what is new to where it is kept."""


class Session:
    """The owner of caches, each bounded, for as long as it is referred to.

    A session may be entered again, also inside itself and by several threads.
    """

    def __init__(self) -> None:
        self._caches: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._owned: dict[tuple[type, int], Any] = {}

    def __enter__(self) -> Session:
        _ENTERED.set((*_ENTERED.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _ENTERED.set(_ENTERED.get()[:-1])
        if self not in _ENTERED.get():
            self.save()

    def save(self) -> None:
        """Have what outlives the session write what this thread has added."""
        own = [found for (_, thread), found in self._owned.items() if thread == get_ident()]
        for found in own:
            if isinstance(found, Saved):
                found.save()

    def cache_of(self, function: Callable[Given, Found], maxsize: int) -> Callable[Given, Found]:
        """The function with a cache of so many results, the same one every time."""
        if function not in self._caches:
            self._caches[function] = lru_cache(maxsize)(function)
        return self._caches[function]

    def the(self, kind: type[Found]) -> Found:
        """The session's one instance of a class in this thread, made without arguments."""
        key = kind, get_ident()
        if key not in self._owned:
            self.keep(kind())
        return cast(Found, self._owned[key])

    def keep(self, found: object) -> None:
        """Make an instance of a class the session's one in this thread."""
        while len(self._owned) >= MOST_OWNED:  # threads that are over leave theirs behind
            oldest = self._owned.pop(next(iter(self._owned)), None)
            if isinstance(oldest, Saved):
                oldest.save()
        self._owned[type(found), get_ident()] = found


_ENTERED: ContextVar[tuple[Session, ...]] = ContextVar("sessions", default=())
_DEFAULT = Session()  # of calls from Python outside of any other


def current_session() -> Session:
    """The session that was entered last, or else a new one that nobody keeps."""
    entered = _ENTERED.get()
    return entered[-1] if entered else Session()


def is_in_session() -> bool:
    """Whether a session was entered, so that something is kept at all."""
    return bool(_ENTERED.get())


def session_cached(maxsize: int) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """Decorate a function of hashable arguments: the current session keeps its results."""

    def decorated(function: Callable[Given, Found]) -> Callable[Given, Found]:
        @wraps(function)
        def found(*args: Given.args, **named: Given.kwargs) -> Found:
            entered = _ENTERED.get()
            if not entered:
                return function(*args, **named)
            return entered[-1].cache_of(function, maxsize)(*args, **named)

        return found

    return decorated


def in_session(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorate a function: where there is no session it runs in one of its own."""

    @wraps(function)
    def inside(*args: Given.args, **named: Given.kwargs) -> Found:
        if _ENTERED.get():
            return function(*args, **named)
        with Session():
            return function(*args, **named)

    return inside


def in_default_session(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorate a function: where there is no session it runs in the one that the process keeps."""

    @wraps(function)
    def inside(*args: Given.args, **named: Given.kwargs) -> Found:
        if _ENTERED.get():
            return function(*args, **named)
        with _DEFAULT:
            return function(*args, **named)

    return inside


def steps_in_session(
    function: Callable[Given, Iterator[Found]],
) -> Callable[Given, Iterator[Found]]:
    """Decorate a generator function: as `in_session`, with the session entered for each step."""

    @wraps(function)
    def inside(*args: Given.args, **named: Given.kwargs) -> Iterator[Found]:
        session = current_session()
        steps = function(*args, **named)
        while True:
            with session:
                try:
                    step = next(steps)
                except StopIteration:
                    return
            yield step

    return inside


def begin_worker() -> None:
    """Have the collector leave alone what a worker process has imported: it lives as long as the
    process, and looking through it is a tenth of a long series of predictions."""
    gc.freeze()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector: predictions allocate many objects and few cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
