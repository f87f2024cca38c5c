"""The page's server: whom it answers, what it refuses, and how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from simgpt.commands.serve import server as served
from simgpt.commands.serve.server import MOST_BYTES, PageServer
from tests.simgpt.face import simgpt

QUESTION = {"model": "tiny-1m", "machine": "frontier", "devices": "8", "plan": "data=rest"}


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def asked(
    server: PageServer,
    name: str,
    body: Any = None,
    *,
    token: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, str]:
    """The status and text of an answer; with a body it is posted as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    path = f"/{server.token if token is None else token}/{name}"
    given = {"Content-Type": "application/json", **(headers or {})}
    text = body if isinstance(body, str) else json.dumps(body)
    method = "GET" if body is None else "POST"
    connection.request(method, path, None if body is None else text, given)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_the_page_and_its_parts_come_with_the_token_only(server: PageServer) -> None:
    for name in ("", "page.css", "page.js", "bars.js"):
        assert asked(server, name)[0] == 200
        for token in ("", "wrong", server.token[:-1], server.token + "x", "%C3%A9"):
            assert asked(server, name, token=token)[0] == 403
    assert asked(server, "predict", QUESTION, token="wrong")[0] == 403
    assert asked(server, "page.py")[0] == 404
    assert asked(server, "../server.py")[0] == 404


def test_every_server_has_a_token_of_its_own() -> None:
    with PageServer() as first, PageServer() as second:
        assert first.token != second.token
        assert len(first.token) >= 32


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1.example.org", ""])
def test_a_foreign_host_name_is_refused(server: PageServer, host: str) -> None:
    assert asked(server, "", headers={"Host": host})[0] == 403


def test_a_forwarded_port_is_answered(server: PageServer) -> None:
    assert asked(server, "", headers={"Host": "localhost:9999"})[0] == 200


def test_a_page_of_another_origin_is_refused(server: PageServer) -> None:
    status, _ = asked(server, "predict", QUESTION, headers={"Origin": "http://example.org"})
    assert status == 403
    own = {"Origin": f"http://127.0.0.1:{server.server_port}"}
    assert asked(server, "predict", QUESTION, headers=own)[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{", {}, 400),
        ("[" * 2000, {}, 400),
        (QUESTION, {"Content-Type": "text/plain"}, 415),
        (QUESTION, {"Content-Length": "-1"}, 411),
        (QUESTION, {"Content-Length": str(MOST_BYTES + 1)}, 413),
        (QUESTION, {"Content-Length": "9" * 100}, 413),
    ],
)
def test_what_is_no_question_is_refused(
    server: PageServer, body: Any, headers: dict[str, str], status: int
) -> None:
    assert asked(server, "predict", body, headers=headers)[0] == status
    assert asked(server, "nothing", QUESTION)[0] == 404


def test_no_other_page_may_hold_or_learn_the_address(server: PageServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", urlsplit(server.address).path)
    headers = connection.getresponse().headers
    connection.close()
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"


def test_it_listens_on_the_loopback_interface_alone(server: PageServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_connections_beyond_a_number_are_closed_until_others_end(server: PageServer) -> None:
    where = ("127.0.0.1", server.server_port)
    held = [socket.create_connection(where, timeout=60) for _ in range(served.MOST_CONNECTIONS)]
    with socket.create_connection(where, timeout=60) as late:
        assert late.recv(1) == b""
    for connection in held:
        connection.close()
    for _ in range(100):
        try:
            assert asked(server, "")[0] == 200
            break
        except (ConnectionError, http.client.BadStatusLine):
            continue
    else:
        pytest.fail("no connection was freed")


def test_a_silent_connection_is_closed(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served._Handler, "timeout", 0.1)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as silent:
        silent.sendall(b"GET / HTTP/1.1\r\n")
        assert silent.recv(1) == b""


def test_a_port_in_use_is_refused_in_a_sentence(server: PageServer) -> None:
    said = simgpt("serve", "--port", str(server.server_port))
    assert said.status == 2
    assert said.sentence == (
        f"simgpt: cannot serve on port {server.server_port}: Address already in use"
    )


def test_ctrl_c_while_a_connection_gets_its_thread_leaves_that_one_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the thread that lets the next connection in, once."""
    started, raised = ThreadingHTTPServer.process_request, list[Any]()

    def interrupted(*args: Any) -> None:
        started(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "process_request", interrupted)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    own, other = socket.socketpair()
    with PageServer() as made, other:
        before = set(threading.enumerate())
        with pytest.raises(KeyboardInterrupt):
            made.process_request(own, ("127.0.0.1", 0))
        other.shutdown(socket.SHUT_RDWR)
        for thread in set(threading.enumerate()) - before:
            thread.join(60)
    assert raised == []


def test_ctrl_c_ends_it_well() -> None:
    words = [sys.executable, "-m", "simgpt", "serve"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        address = urlsplit(running.stdout.readline().strip())
        connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=60)
        connection.request("GET", address.path)
        assert connection.getresponse().status == 200
        connection.close()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "")
    assert err == "open this address in a browser; Ctrl-C ends\nended\n"
