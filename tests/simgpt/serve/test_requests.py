"""Requests that are none, or that another reader could take for others: refused, and harmless."""

from __future__ import annotations

import json

import pytest

from simgpt.commands.serve.heads import MOST_BYTES as MOST_HEAD
from simgpt.commands.serve.heads import MOST_FIELDS, Head, HeadReader
from simgpt.commands.serve.server import PageServer
from tests.simgpt.serve.raw import CONTINUE, connected, parsed, request, sent, unguarded

QUESTION = json.dumps(
    {"model": "tiny-1m", "machine": "frontier", "devices": "8", "plan": "data=rest"}
).encode()


def own(server: PageServer, **fields: str) -> list[tuple[str, str]]:
    """The fields of a question of the page, with others in their place or beside them."""
    usual = {"Host": f"127.0.0.1:{server.port}", "Content-Type": "application/json"}
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return list({**usual, "Content-Length": str(len(QUESTION)), **named}.items())


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET http://[ HTTP/1.1", 400),
        ("GET http://[::1 HTTP/1.1", 400),
        ("GET http://127.0.0.1:PORT/TOKEN/ HTTP/1.1", 400),
        ("GET //TOKEN/ HTTP/1.1", 403),
        ("GET //[/ HTTP/1.1", 403),
        ("GET /\u00e9 HTTP/1.1", 400),
        ("GET / HTTP/1.1 x", 400),
        ("GET  / HTTP/1.1", 400),
        ("GET /", 400),
        ("GET / HTTP/1", 400),
        ("GET / HTTP/1.\u00b2", 400),
        ("GET / HTTP/9999999999999.1", 400),
        ("GET / HTTP/2.0", 505),
        ("GET / HTTP/0.9", 505),
        ("PRI * HTTP/2.0", 505),
        ("", 400),
        (" GET / HTTP/1.1", 400),
        ("get /TOKEN/ HTTP/1.1", 501),
        ("HEAD /TOKEN/ HTTP/1.1", 501),
        ("OPTIONS * HTTP/1.1", 501),
        ("CONNECT 127.0.0.1:80 HTTP/1.1", 501),
        ("GET * HTTP/1.1", 400),
        ("GET /?" + "x" * 9000 + " HTTP/1.1", 414),
        ("<script>alert(1)</script> / HTTP/1.1", 400),
        ("GET /TOKEN/<script>alert(1)</script> HTTP/1.1", 404),
    ],
)
def test_a_line_that_asks_for_no_page_is_refused(
    running: PageServer, line: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    drawn = line.replace("TOKEN", running.token).replace("PORT", str(running.port))
    got = sent(running.port, request(drawn, own(running)))
    assert got.status == status
    assert unguarded(got) == []
    assert b"script" not in got.body
    assert capfd.readouterr() == ("", "")
    if line.startswith("HEAD"):
        assert got.body == b""


def test_a_foreign_host_does_not_hide_that_a_line_is_malformed(
    running: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    got = sent(running.port, request("GET http://[ HTTP/1.1", [("Host", "localhost")]))
    assert got.status == 400
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\n\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: \x1b[2J\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA b: c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\xff: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MOST_FIELDS + 1) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * MOST_HEAD + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * MOST_HEAD, 431),
        (b"G" * MOST_HEAD, 414),
        (b"GET /\r\n", 400),
        (b"\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\x00", 400),
    ],
)
def test_what_is_no_head_is_refused_as_soon_as_it_cannot_be_one(
    running: PageServer, head: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    got = sent(running.port, head)  # whose connection stays open
    assert got.status == status
    assert unguarded(got) == []
    assert capfd.readouterr() == ("", "")


def test_a_head_that_ends_early_is_refused_and_one_in_pieces_is_read(running: PageServer) -> None:
    whole = request(f"POST /{running.token}/predict HTTP/1.1", own(running), QUESTION)
    assert sent(running.port, whole[:40], ends=True).status == 400
    assert sent(running.port, whole[:-1], ends=True).status == 400
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    got = sent(running.port, *pieces, ends=True)
    assert (got.status, "prediction" in json.loads(got.body)) == (200, True)


def test_a_head_is_the_same_however_it_is_cut() -> None:
    whole = b"GET /a HTTP/1.1\r\nHost: x\r\nCookie: a\r\nCookie: b\r\n\r\nrest"
    for size in range(1, len(whole) + 1):
        reader, heads = HeadReader(), list[Head]()
        for at in range(0, len(whole), size):
            if heads:
                reader.received += whole[at : at + size]
            else:
                heads += filter(None, [reader.read(whole[at : at + size])])
        (head,) = heads
        assert (head.method, head.target) == ("GET", "/a")
        assert head.fields == {"host": "x", "cookie": "a, b"}
        assert reader.received == b"rest"


@pytest.mark.parametrize(
    "host",
    [
        *("localhost:1@evil.com", "127.0.0.1:80, evil.com", "localhost", "127.0.0.1", "evil.com"),
        *("localhost:1", "127.0.0.1:", "127.0.0.1.:PORT", "localhost.:PORT", "127.1:PORT", ""),
        *("[::1]:PORT", "2130706433:PORT", "0.0.0.0:PORT", "localhost:0PORT", "x@localhost:PORT"),
        *("localhost:PORT/", "localhost:PORT x", "xlocalhost:PORT", "localhost:PORT.evil.com"),
    ],
)
def test_the_host_is_compared_whole(running: PageServer, host: str) -> None:
    named = host.replace("PORT", str(running.port))
    got = sent(running.port, request(f"GET /{running.token}/ HTTP/1.1", own(running, Host=named)))
    assert got.status == 403
    assert unguarded(got) == []


def test_a_request_without_a_host_or_with_two_is_refused(running: PageServer) -> None:
    line, fields = f"GET /{running.token}/ HTTP/1.1", own(running)
    assert sent(running.port, request(line, fields[1:])).status == 403
    for again in (fields[0], ("hOsT", "evil.com")):
        assert sent(running.port, request(line, [*fields, again])).status == 400
    for name in ("127.0.0.1", "localhost"):
        host = own(running, Host=f"{name}:{running.port}")
        assert sent(running.port, request(line, host)).status == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([("Content-Length", "-1")], 411),
        ([("Content-Length", "+5")], 411),
        ([("Content-Length", "")], 411),
        ([("Content-Length", "0x10")], 411),
        ([("Content-Length", "1_0")], 411),
        ([("Content-Length", "5, 5")], 411),
        ([("Content-Length", "\u00b2")], 411),
        ([("Content-Length", "9" * 5000)], 413),
        ([("Content-Length", "5"), ("Content-Length", "5")], 400),
        ([("Content-Length", "5"), ("content-length", "6")], 400),
        ([("Transfer-Encoding", "chunked")], 411),
        ([("Content-Length", "5"), ("Transfer-Encoding", "chunked")], 411),
        ([("Content-Length", "5"), ("Transfer-Encoding", "identity")], 411),
        ([("Content-Length", "5"), ("Content-Type", "text/plain")], 400),
        ([], 411),
    ],
)
def test_a_body_of_unclear_length_is_refused(
    running: PageServer, fields: list[tuple[str, str]], status: int
) -> None:
    others = [(name, value) for name, value in own(running) if name != "Content-Length"]
    line = f"POST /{running.token}/predict HTTP/1.1"
    got = sent(running.port, request(line, others + fields, b"5\r\nhello\r\n0\r\n\r\n"))
    assert got.status == status
    assert unguarded(got) == []


def test_what_follows_a_request_is_no_second_one(running: PageServer) -> None:
    """`sent` reads until the connection is closed, and takes one reply alone."""
    line = f"GET /{running.token}/page.css HTTP/1.1"
    assert sent(running.port, request(line, own(running)) * 2).status == 200


def test_a_body_is_sent_for_where_the_client_waits(running: PageServer) -> None:
    fields = own(running, Expect="100-continue")
    with connected(running.port) as connection:
        connection.sendall(request(f"POST /{running.token}/predict HTTP/1.1", fields))
        assert connection.recv(len(CONTINUE)) == CONTINUE
        connection.sendall(QUESTION)
        received = b""
        while piece := connection.recv(2**16):
            received += piece
    assert parsed(received).status == 200


def test_a_client_that_leaves_amid_its_answer_goes_unnoticed(
    running: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = request(f"POST /{running.token}/predict HTTP/1.1", own(running), QUESTION)
    for _ in range(5):
        with connected(running.port) as connection:
            connection.sendall(whole)
    assert sent(running.port, whole).status == 200
    assert capfd.readouterr() == ("", "")
