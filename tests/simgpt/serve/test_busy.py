"""Many clients and slow ones: nobody without the token keeps the user out, and all get a reply."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from simgpt.commands.serve import connections
from simgpt.commands.serve.connections import Connections, Place, Question
from simgpt.commands.serve.heads import Head
from simgpt.commands.serve.replies import Reply, json_reply
from simgpt.commands.serve.server import PageServer
from tests.examples import one_in, slow
from tests.simgpt.serve.raw import (
    PATIENCE_S,
    Got,
    connected,
    parsed,
    reply,
    request,
    sent,
    unguarded,
)


def page(server: PageServer) -> bytes:
    host = ("Host", f"127.0.0.1:{server.port}")
    return request(f"GET /{server.token}/ HTTP/1.1", [host])


def question(server: PageServer, body: bytes, length: int | None = None) -> bytes:
    """A question that is answered, with what it lacks, before anything is predicted."""
    fields = {"Host": f"127.0.0.1:{server.port}", "Content-Type": "application/json"}
    fields["Content-Length"] = str(len(body) if length is None else length)
    return request(f"POST /{server.token}/predict HTTP/1.1", fields.items(), body)


@contextlib.contextmanager
def held(port: int, count: int, begun: bytes) -> Iterator[list[socket.socket]]:
    """Connections that have sent the beginning of something."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(connected(port)))
            found[-1].sendall(begun)
        yield found


def refused_as_busy(got: Got) -> bool:
    assert unguarded(got) == []
    return got.status == 503 and int(got.fields["retry-after"]) > 0


@pytest.mark.parametrize(
    "begun", [b"", b"GET /x HTTP/1.1\r\nHost: x\r\n", pytest.param(b"G", marks=pytest.mark.slow)]
)
def test_who_has_no_token_cannot_keep_the_user_out(running: PageServer, begun: bytes) -> None:
    with held(running.port, 3 * connections.MOST[Place.HEAD], begun) as slow:
        for _ in range(3):
            assert sent(running.port, page(running)).status == 200
            assert sent(running.port, question(running, b"{}")).status == 200
        assert refused_as_busy(reply(slow[0]))  # the oldest made room


def test_bodies_that_do_not_come_keep_nobody_out(running: PageServer) -> None:
    begun = question(running, b"{", length=1000)
    with held(running.port, 3 * connections.MOST[Place.BODY], begun) as slow:
        assert sent(running.port, page(running)).status == 200
        assert sent(running.port, question(running, b"{}")).status == 200
        assert refused_as_busy(reply(slow[0]))


@pytest.mark.parametrize("place", one_in(2, [Place.HEAD, Place.BODY]))
def test_a_drip_does_not_prolong_the_time_that_a_request_has(
    running: PageServer, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    """Each byte comes well within the limit; the request never would be whole."""
    monkeypatch.setitem(connections.LONGEST_S, place, 1.0)
    begun = b"GET /" if place is Place.HEAD else question(running, b"{", length=1000)
    with connected(running.port) as slow:
        slow.sendall(begun)
        slow.settimeout(0.05)
        for _ in range(400):
            with contextlib.suppress(TimeoutError):
                received = slow.recv(2**16)
                break
            slow.sendall(b"x")
        else:
            pytest.fail("its time begins again with each byte")
        slow.settimeout(PATIENCE_S)
        while piece := slow.recv(2**16):
            received += piece
    got = parsed(received)
    assert got.status == 408
    assert unguarded(got) == []


@pytest.mark.slow
def test_a_client_that_reads_no_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.LONGEST_S, Place.LEAVING, 0.2)
    long = Reply(200, "x" * 2**24, "text/plain")
    with _serving(lambda _: long, _unasked) as port, connected(port) as lazy:
        lazy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sent(port, b"G", ends=True).status == 400
        threading.Event().wait(1.0)
        received = 0
        with contextlib.suppress(ConnectionError):
            while piece := lazy.recv(2**20):
                received += len(piece)
        assert received < 2**24


def test_two_hundred_at_once_are_answered_or_told_to_come_again(running: PageServer) -> None:
    """Half of them ask for the page, half ask a question; all stay connected until the last is."""
    asked = [page(running), question(running, b"{}")] * 100
    begin = threading.Barrier(len(asked), timeout=PATIENCE_S)

    def ask(what: bytes) -> Got:
        with connected(running.port) as connection:
            begin.wait()
            connection.sendall(what)
            return reply(connection)

    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(ask, asked))
    statuses = Counter(got.status for got in found)
    assert set(statuses) <= {200, 503}
    assert statuses[200] > 0
    for got in found:
        assert got.status == 200 or refused_as_busy(got)


def test_questions_beyond_a_number_are_turned_away_and_those_before_answered() -> None:
    goes_on, most = threading.Event(), connections.MOST[Place.ASKED]

    def work(name: str, body: bytes) -> Reply:
        assert goes_on.wait(PATIENCE_S)
        return json_reply(200, {"name": name, "body": body.decode()})

    with _serving(lambda head: Question(head.target, 2), work) as port:
        asked = request("POST /a HTTP/1.1", [], b"{}")
        with held(port, most, asked) as waiting:
            assert refused_as_busy(sent(port, asked))
            assert sent(port, b"\0").status == 400  # others are answered meanwhile
            goes_on.set()
            for each in waiting:
                assert json.loads(reply(each).body) == {"name": "/a", "body": "{}"}


def test_an_error_of_ours_is_said_on_both_sides_and_ends_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work(name: str, body: bytes) -> Reply:
        raise LookupError("of ours")

    def admit(head: Head) -> Question:
        if head.target == "/bad":
            raise LookupError("in a head")
        return Question(head.target, 0)

    with _serving(admit, work) as port:
        for _ in range(2):
            got = sent(port, b"GET /a HTTP/1.1\r\n\r\n")
            assert (got.status, unguarded(got)) == (500, [])
        with connected(port) as connection:
            connection.sendall(b"GET /bad HTTP/1.1\r\n\r\n")
            assert reply(connection).status == 500
        assert sent(port, b"GET /a HTTP/1.1\r\n\r\n").status == 500
    err = capfd.readouterr().err
    assert (err.count("Error: of ours"), err.count("Error: in a head")) == (3, 1)


@contextlib.contextmanager
def _serving(admit: connections.Admit, work: connections.Work) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    served = Connections(listening, admit, work)
    thread = threading.Thread(target=served.serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        served.stop()
        thread.join()
        served.close()


def _unasked(name: str, body: bytes) -> Reply:
    raise AssertionError


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 0), *slow((signal.SIGTERM, 143), (signal.SIGHUP, 129))],
)
def test_slow_clients_do_not_hold_up_the_end(number: signal.Signals, status: int) -> None:
    words = [sys.executable, "-m", "simgpt", "serve"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        port = urlsplit(running.stdout.readline().strip()).port or 0
        with held(port, 20, b"GET /"):
            assert sent(port, b"\0").status == 400  # it has accepted them all
            running.send_signal(number)
            _, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == status
    assert "Traceback" not in err


def test_few_descriptors_end_nothing() -> None:
    """Those of an honest client are freed by who holds most of them."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40));"
        "sys.argv[1:] = ['serve']; from simgpt.cli import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        address = urlsplit(running.stdout.readline().strip())
        port = address.port or 0
        asked = request(f"GET {address.path} HTTP/1.1", [("Host", f"127.0.0.1:{port}")])
        with held(port, 60, b"G"):
            assert sent(port, asked).status == 200
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in err
