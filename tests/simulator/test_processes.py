"""Signs of life: what counts as frozen, and what does not, without waiting for any of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from simulator.child_process import BEATS, STARTING, Pulse, Watch, beat, ran_ticks, signals_ignored

FROZEN_S = 30.0
LOOKS = BEATS // 2 + 1  # of twice the time between beats, which is the most that one may count


@contextmanager
def pulse_of(pid: int) -> Iterator[tuple[Pulse, Connection]]:
    """The pulse of a process, which beat once."""
    heard, beats = multiprocessing.Pipe(duplex=False)
    with heard, beats:
        pulse = Pulse(heard, pid, FROZEN_S)
        beats.send_bytes(b".")
        assert not pulse.look(0.0)
        yield pulse, beats


@contextmanager
def stopped() -> Iterator[int]:
    """A process that was stopped."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process.send_signal(signal.SIGSTOP)
        while True:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                break
        yield process.pid
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def test_a_stopped_process_counts_as_frozen_after_that_time_of_silence_and_not_before() -> None:
    with stopped() as pid, pulse_of(pid) as (pulse, beats):
        assert [pulse.look(2.0) for _ in range(LOOKS)] == [False] * (LOOKS - 1) + [True]
        beats.send_bytes(b".")
        assert not pulse.look(2.0)
        assert [pulse.look(1.0) for _ in range(BEATS + 1)] == [False] * BEATS + [True]


def test_time_in_which_the_listener_did_not_run_is_no_silence() -> None:
    """As after Ctrl-Z and fg: an hour between two looks counts as one look."""
    with stopped() as pid, pulse_of(pid) as (pulse, _):
        assert [pulse.look(3600.0) for _ in range(LOOKS)] == [False] * (LOOKS - 1) + [True]


def test_a_process_that_has_a_processor_runs_though_its_beats_are_late() -> None:
    with pulse_of(os.getpid()) as (pulse, _):
        for _ in range(3 * LOOKS):
            assert not pulse.look(2.0)
            before = ran_ticks(os.getpid())
            while ran_ticks(os.getpid()) == before:
                sum(range(1000))


def test_a_process_that_is_starting_may_take_ten_times_as_long() -> None:
    heard, beats = multiprocessing.Pipe(duplex=False)
    with heard, beats, stopped() as pid:
        pulse = Pulse(heard, pid, FROZEN_S)
        looks = STARTING * BEATS // 2
        assert not any(pulse.look(2.0) for _ in range(looks))
        assert pulse.look(2.0)


def test_a_process_that_is_gone_is_not_frozen() -> None:
    with pulse_of(os.getpid()) as (pulse, beats):
        beats.close()
        assert not any(pulse.look(2.0) for _ in range(3 * LOOKS))


def test_a_process_beats_until_nobody_listens() -> None:
    heard, beats = multiprocessing.Pipe(duplex=False)
    with heard, beats:
        beat(beats, 0.3)
        assert [heard.recv_bytes() for _ in range(5)] == [b"."] * 5


def test_an_answer_comes_before_the_news_that_its_process_froze() -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, stopped() as pid, pulse_of(pid) as (pulse, _):
        watch = Watch(FROZEN_S)
        while not pulse.look(2.0):
            pass
        assert watch.wait({ours: pulse}, 60.0) == ([], [ours])
        theirs.send(1)
        assert watch.wait({ours: pulse}, 60.0) == ([ours], [])


def test_nobody_answers_and_nobody_is_frozen_until_the_time_is_over() -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, pulse_of(os.getpid()) as (pulse, _):
        assert Watch(FROZEN_S).wait({ours: pulse}, 0.01) == ([], [])


def test_what_is_started_meanwhile_does_not_hear_of_a_signal() -> None:
    code = "import time; print(flush=True); time.sleep(600)"
    with signals_ignored({signal.SIGINT}):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM


def test_an_interruption_that_another_thread_takes_is_heard_when_the_start_is_over() -> None:
    """A thread that was there before blocks nothing."""
    now, done = threading.Event(), []

    def take() -> None:
        now.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    taker = threading.Thread(target=take)
    taker.start()
    with pytest.raises(KeyboardInterrupt), signals_ignored({signal.SIGINT}):
        now.set()
        taker.join()
        time.sleep(0.05)
        done.append("started")
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("pid", [0, 2**31])
def test_of_a_process_that_is_not_there_nobody_says_how_long_it_ran(pid: int) -> None:
    assert ran_ticks(pid) == -1


@pytest.mark.parametrize("name", ["pytest", "a) R 1 (b"])
def test_a_process_ran_for_its_own_user_and_system_time(name: str) -> None:
    """Without that of its children, and whatever it is called."""
    own = Path("/proc/self/comm")
    called, per_second = own.read_text(), os.sysconf("SC_CLK_TCK")
    own.write_text(name)
    try:
        user, system, *_ = os.times()
        ticks = ran_ticks(os.getpid())
    finally:
        own.write_text(called.rstrip("\n"))
    assert user > 10 / per_second
    assert ticks == pytest.approx((user + system) * per_second, abs=5)
