"""Pools of processes: what they answer, who is lost, and that they end with who started them."""

from __future__ import annotations

import multiprocessing
import operator
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from simulator.pool import LostError, OverdueError, Pool, signals_ignored
from tests.messages import names
from tests.simgpt.studies.processes import PATIENCE_S, runs
from topologies.session import current_session


def slept(seconds: float) -> float:
    """So many seconds, after them."""
    time.sleep(seconds)
    return seconds


class Kept(list[int]):
    """What a process keeps from one task to the next."""


def add(number: int) -> list[int]:
    """All numbers that this process was given."""
    current_session().the(Kept).append(number)
    return [*current_session().the(Kept)]


def half_an_answer() -> None:
    """End in the middle of the answer."""
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    pipe = frame.f_locals["result_queue"]._writer.fileno()
    os.write(pipe, struct.pack("!i", 1000) + b"half of it")
    os._exit(3)


def test_results_are_in_order_or_as_they_arrive() -> None:
    """Whichever of two processes is through first, of which the first sleeps."""
    with Pool(2) as pool:
        assert list(pool.map(slept, [0.5, 0, 0])) == [0.5, 0, 0]
        assert list(pool.map(abs, range(-7, 0), at_once=3)) == [7, 6, 5, 4, 3, 2, 1]
        assert list(pool.map_as_done(slept, [0.5, 0, 0])) == [(1, 0), (2, 0), (0, 0.5)]
        assert list(pool.map_as_done(slept, [])) == list(pool.map(slept, [])) == []


def test_each_process_keeps_a_session_of_its_own() -> None:
    with Pool(2, partial(add, 0)) as pool:
        for number in (1, 2):
            pool.submit(0, add, number)
            assert pool.wait() == (0, [*range(number + 1)])
        pool.submit(1, add, 7)
        assert pool.wait() == (1, [0, 7])
    assert [*current_session().the(Kept)] == []


def test_a_task_is_what_it_was_when_it_was_given() -> None:
    """Though it may be sent later, and may have changed by then."""
    with Pool(1) as pool:
        numbers = [1]
        pool.submit(0, sum, numbers)
        numbers.append(1)
        assert pool.wait() == (0, 1)


def test_an_error_of_a_task_is_raised_and_a_process_that_ends_is_lost() -> None:
    with Pool(1) as pool:
        with pytest.raises(TypeError):
            list(pool.map(abs, ["-1"]))
        with pytest.raises(LostError, check=names("ended (1)")):
            list(pool.map(os._exit, [1]))
    assert multiprocessing.active_children() == []


def test_a_process_that_ends_in_the_middle_of_an_answer_is_lost_too() -> None:
    with Pool(1) as pool:
        pool.submit(0, half_an_answer)
        with pytest.raises(LostError, check=names("ended (3)")):
            pool.wait()


def test_a_process_that_is_killed_is_named_and_the_others_go_on_beside_another_one() -> None:
    with Pool(2) as pool:
        pool.submit(0, slept, 600)
        pool.submit(1, os.getpid)
        number, other = pool.wait()
        victim = pool._workers[0].process.pid
        assert number == 1
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(LostError, check=names(str(victim), "signal 9")) as error:
            pool.wait()
        assert error.value.number == 0
        pool.restart(0)
        for number in (0, 1):
            pool.submit(number, os.getpid)
        answers = dict(pool.wait() for _ in range(2))
        assert answers[1] == other
        assert answers[0] not in (victim, other)
    assert multiprocessing.active_children() == []


def test_a_process_that_was_killed_without_a_task_is_missed_when_it_has_one() -> None:
    with Pool(1) as pool:
        pool.submit(0, os.getpid)
        _, pid = pool.wait()
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
        pool.submit(0, os.getpid)
        with pytest.raises(LostError, check=names(str(pid), "signal 9")):
            pool.wait()


def test_an_answer_is_waited_for_so_long_and_no_longer() -> None:
    with Pool(2, longest_s=0.5) as pool:
        pool.submit(1, slept, 600)
        with pytest.raises(OverdueError, check=names(str(pool._workers[1].process.pid))) as error:
            pool.wait()
        assert error.value.number == 1
    assert multiprocessing.active_children() == []


def test_a_stopped_process_ends_with_its_pool() -> None:
    with Pool(1) as pool:
        pool.submit(0, os.getpid)
        _, pid = pool.wait()
        os.kill(pid, signal.SIGSTOP)
    assert multiprocessing.active_children() == []


def test_a_pool_that_is_left_while_it_is_told_something_ends_at_once() -> None:
    before = threading.active_count()
    with Pool(2) as pool:
        for number in pool.idle:
            pool.submit(number, operator.is_, bytes(10**7), 1)  # more than a pipe holds
        assert pool.idle == []
    assert threading.active_count() == before
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGURG])
def test_signals_to_a_whole_group_are_for_the_parent(number: signal.Signals) -> None:
    with Pool(1) as pool:
        pool.submit(0, os.getpid)
        _, pid = pool.wait()
        os.kill(pid, number)
        pool.submit(0, slept, 0.1)
        assert pool.wait() == (0, 0.1)


SCRIPT = """
from simulator.pool import Pool
SCRIPT = "is begun"
print(SCRIPT, flush=True)
with Pool(1) as pool:
    print(*pool.map(eval, ["hasattr(__import__('sys').modules['__main__'], 'SCRIPT')"]), flush=True)
    pool.submit(0, eval, "print(__import__('os').getpid(), flush=True) or {busy}")
    pool.wait()
"""
BUSY = "sum(map(lambda _: 0, iter(int, 1)))"  # without end


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that asks at once, without looking whether it is `__main__`."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(busy="None"), encoding="utf-8")
    return path


def test_a_script_is_not_run_again_by_its_processes(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    *said, _ = done.stdout.splitlines()
    assert (said, done.stderr) == (["is begun", "False"], "")


@pytest.fixture
def starter(script: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a busy one that it has started, by its number."""
    script.write_text(SCRIPT.format(busy=BUSY), encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as own:
        try:
            assert own.stdout is not None
            pid = [own.stdout.readline() for _ in range(3)][-1]
            yield own, int(pid)
        finally:
            own.kill()


def test_a_busy_process_ends_with_the_one_that_started_it(
    starter: tuple[subprocess.Popen[str], int],
) -> None:
    own, pid = starter
    own.kill()
    end = time.monotonic() + PATIENCE_S
    while runs(pid):
        assert time.monotonic() < end, "it outlives its parent"
        time.sleep(0.01)


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
