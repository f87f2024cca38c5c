"""The page's server: whom it answers, what it refuses, and how it ends."""

from __future__ import annotations

import errno
import http.client
import json
import os
import signal
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest

from simgpt.commands.serve.server import MOST_BYTES, PageServer
from tests.messages import assert_names
from tests.simgpt.face import simgpt

QUESTION = {"model": "tiny-1m", "machine": "frontier", "devices": "8", "plan": "dp=rest"}


def asked(
    running: PageServer,
    name: str,
    body: Any = None,
    *,
    token: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, str]:
    """The status and text of an answer; with a body it is posted as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    path = f"/{running.token if token is None else token}/{name}"
    given = {"Content-Type": "application/json", **(headers or {})}
    text = body if isinstance(body, str) else json.dumps(body)
    method = "GET" if body is None else "POST"
    connection.request(method, path, None if body is None else text, given)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_the_page_and_its_parts_come_with_the_token_only(running: PageServer) -> None:
    for name in ("", "page.css", "page.js", "bars.js"):
        assert asked(running, name)[0] == 200
        for token in ("", "wrong", running.token[:-1], running.token + "tp", "%C3%A9"):
            assert asked(running, name, token=token)[0] == 403
    assert asked(running, "predict", QUESTION, token="wrong")[0] == 403
    assert asked(running, "page.py")[0] == 404
    assert asked(running, "../server.py")[0] == 404


def test_every_server_has_a_token_of_its_own() -> None:
    with PageServer() as first, PageServer() as second:
        assert first.token != second.token
        assert len(first.token) >= 32


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1.example.org", ""])
def test_a_foreign_host_name_is_refused(running: PageServer, host: str) -> None:
    assert asked(running, "", headers={"Host": host})[0] == 403


def test_a_page_of_another_origin_is_refused(running: PageServer) -> None:
    status, _ = asked(running, "predict", QUESTION, headers={"Origin": "http://example.org"})
    assert status == 403
    own = {"Origin": f"http://127.0.0.1:{running.port}"}
    assert asked(running, "predict", QUESTION, headers=own)[0] == 200


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
    running: PageServer, body: Any, headers: dict[str, str], status: int
) -> None:
    assert asked(running, "predict", body, headers=headers)[0] == status
    assert asked(running, "nothing", QUESTION)[0] == 404


def test_no_other_page_may_hold_or_learn_the_address(running: PageServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    connection.request("GET", urlsplit(running.address).path)
    headers = connection.getresponse().headers
    connection.close()
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"


def test_it_listens_on_the_loopback_interface_alone(running: PageServer) -> None:
    assert running.socket.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_refused_in_a_sentence(running: PageServer) -> None:
    said = simgpt("serve", "--port", str(running.port))
    assert said.status == 2
    assert_names(said.sentence, f"{running.port}", os.strerror(errno.EADDRINUSE))


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
    assert "Traceback" not in err
    assert_names(err, "Ctrl-C")
