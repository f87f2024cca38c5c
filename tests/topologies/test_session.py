"""A session keeps what was computed for as long as it is entered, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context

from topologies.session import (
    Session,
    current_session,
    in_session,
    session_cached,
    steps_in_session,
)

calls: list[int] = []


@session_cached(2)
def double(number: int) -> int:
    calls.append(number)
    return 2 * number


class Programs:
    """Anything that a session may own."""


def test_a_result_is_computed_once_in_a_session_and_anew_in_the_next() -> None:
    for expected in (1, 2):
        with Session():
            assert [double(7), double(7)] == [14, 14]
        assert calls.count(7) == expected


def test_the_least_recently_used_result_makes_room() -> None:
    with Session():
        for number in (31, 32, 31, 33, 31, 32):
            double(number)
    assert [calls.count(number) for number in (31, 32, 33)] == [1, 2, 1]


def without_session() -> None:
    double(91)
    double(91)
    assert current_session() is not current_session()


def test_without_a_session_nothing_is_kept() -> None:
    Context().run(without_session)
    assert calls.count(91) == 2


def test_a_session_that_is_entered_inside_another_ends_alone() -> None:
    outer, inner = Session(), Session()
    with outer:
        with inner, outer, inner:
            assert current_session() is inner
        assert current_session() is outer
        assert outer.the(Programs) is outer.the(Programs)
        assert outer.the(Programs) is not inner.the(Programs)


def test_an_instance_that_a_session_is_given_is_its_one_of_that_class() -> None:
    given, another = Programs(), Programs()
    with Session() as session:
        for each in (given, another):
            session.keep(each)
            assert session.the(Programs) is each


def test_a_function_runs_in_a_session_of_its_own_where_there_is_none() -> None:
    found = in_session(lambda: (current_session(), current_session()))
    context = Context()
    with Session() as session:
        assert found() == (session, session)
    first, second = context.run(found)
    assert first is second
    assert first is not context.run(found)[0]


def test_the_steps_of_a_generator_share_a_session_and_leave_none_behind() -> None:
    @steps_in_session
    def steps() -> Iterator[Session]:
        for _ in range(3):
            yield current_session()

    before = current_session()
    found = steps()
    assert len({next(found), next(found), next(found)}) == 1
    assert current_session() is before
    assert next(found, None) is None
