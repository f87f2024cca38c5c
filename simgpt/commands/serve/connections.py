"""The connections of the page's server: one thread reads and writes them all, another computes.

Any program of the machine can connect, so nobody who has not shown the token may hold what others
need. A connection is in one of four places, each with a limit of connections and of time:

- HEAD: its head is not whole. Where there are too many, the oldest is turned away, for the head of
  an honest client comes at once and is read as it is accepted.
- BODY: its head is whole and has the token. The oldest is turned away too.
- ASKED: its question waits for the thread that computes. Where there are too many, the newest is
  turned away.
- LEAVING: its reply is being sent, or was, and what it still sends is read and dropped: were it
  closed at once, the reply could be lost ("reset by peer").

The limit of time is for the whole of a place, not for a read, so that no drip prolongs it. Whoever
is turned away gets a 503, whoever is late a 408.
"""

from __future__ import annotations

import errno
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue

from simgpt.commands.serve.heads import Head, HeadReader, RefusedError
from simgpt.commands.serve.replies import BUSY, CONTINUE, Reply, refusal
from topologies.records import record

PIECE = 2**16


class Place(Enum):
    """Where a connection is."""

    HEAD = "head"
    BODY = "body"
    ASKED = "asked"
    LEAVING = "leaving"


MOST = {Place.HEAD: 64, Place.BODY: 16, Place.ASKED: 32, Place.LEAVING: 64}  # connections
LONGEST_S = {Place.HEAD: 10.0, Place.BODY: 10.0, Place.LEAVING: 10.0}
LINGER_S = 2.0  # in LEAVING, after the last byte of a reply


@record
class Question:
    """What a request asks for, whose body has `length` bytes; `waits` for word to send it."""

    name: str
    length: int
    waits: bool = False


Admit = Callable[[Head], Reply | Question]
Work = Callable[[str, bytes], Reply]


@dataclass(eq=False, slots=True)
class _Client:
    """One connection."""

    socket: socket.socket
    place: Place = Place.HEAD
    until: float | None = None
    reader: HeadReader = field(default_factory=HeadReader)
    question: Question | None = None
    unsent: bytes = b""


class Connections:
    """Serves a listening socket until it is told to stop.

    `admit` says from a head what to reply at once, or which question it asks; `work` replies to a
    question with its body, in a thread of its own. Both may raise a RefusedError.
    """

    def __init__(self, listening: socket.socket, admit: Admit, work: Work) -> None:
        self._listening, self._admit, self._work = listening, admit, work
        self._clients: dict[Place, dict[_Client, None]] = {place: {} for place in Place}
        self._questions: SimpleQueue[tuple[_Client, Question, bytes] | None] = SimpleQueue()
        self._replies: SimpleQueue[tuple[_Client, Reply]] = SimpleQueue()
        self._stops = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for each in (listening, self._woken, self._waker):
            each.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until `stop`; a question under way does not hold up the end."""
        threading.Thread(target=self._compute, daemon=True).start()
        try:
            while not self._stops:
                for key, events in self._selector.select(self._patience()):
                    self._heed(key.fileobj, key.data, events)
                self._turn_away_late()
        finally:
            self._questions.put(None)

    def stop(self) -> None:
        """Let `serve` return; from any thread."""
        self._stops = True
        self._wake()

    def close(self) -> None:
        """Close every connection."""
        for clients in self._clients.values():
            for client in clients:
                client.socket.close()
            clients.clear()
        self._selector.close()
        for each in (self._listening, self._woken, self._waker):
            each.close()

    def _heed(self, source: object, client: _Client | None, events: int) -> None:
        if client is None:
            self._accept() if source is self._listening else self._send_replies()
        elif client not in self._clients[client.place]:
            return  # turned away since the selector named it
        elif events & selectors.EVENT_WRITE:
            self._send(client)
        else:
            self._read(client)

    def _patience(self) -> float | None:
        """Seconds until the first connection is late."""
        ends = [client.until for clients in self._clients.values() for client in clients]
        first = min((end for end in ends if end is not None), default=None)
        return None if first is None else max(first - time.monotonic(), 0.0)

    def _turn_away_late(self) -> None:
        now = time.monotonic()
        for place, clients in self._clients.items():
            for client in [
                each for each in clients if each.until is not None and each.until <= now
            ]:
                if place is Place.LEAVING:
                    self._drop(client)
                else:
                    self._reply(client, refusal(408, "the request did not come in time"))

    def _accept(self) -> None:
        """Let one connection in, and read what it has sent already."""
        try:
            accepted, _ = self._listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._make_room()
            return  # or it is gone again
        accepted.setblocking(False)
        client = _Client(accepted)
        self._selector.register(accepted, selectors.EVENT_READ, client)
        self._move(client, Place.HEAD)
        self._read(client)
        self._turn_away_oldest(Place.HEAD)

    def _turn_away_oldest(self, place: Place) -> None:
        if len(clients := self._clients[place]) > MOST[place]:
            self._reply(next(iter(clients)), BUSY)

    def _make_room(self) -> None:
        """Free a descriptor, turn one away whose descriptor the next call frees, or wait."""
        if leaving := self._clients[Place.LEAVING]:
            self._drop(next(iter(leaving)))
        elif waiting := self._clients[Place.HEAD]:
            self._reply(next(iter(waiting)), BUSY)
        else:
            time.sleep(0.05)

    def _move(self, client: _Client, place: Place) -> None:
        self._clients[client.place].pop(client, None)
        client.place = place
        client.until = time.monotonic() + LONGEST_S[place] if place in LONGEST_S else None
        self._clients[place][client] = None

    def _read(self, client: _Client) -> None:
        try:
            piece = client.socket.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        if client.place is Place.LEAVING:
            if not piece:
                self._drop(client)
            return
        try:
            if not piece:
                raise RefusedError(400, "the request ends before it is whole")
            self._go_on(client, piece)
        except Exception as error:
            self._reply(client, _excuse(error))

    def _go_on(self, client: _Client, piece: bytes) -> None:
        """Take what a client has sent, as far as it goes."""
        if client.question is None:
            head = client.reader.read(piece)
            if head is None:
                return
            found = self._admit(head)
            if isinstance(found, Reply):
                self._reply(client, found)
                return
            client.question = found
            self._move(client, Place.BODY)
            if found.waits and not client.reader.received:
                with suppress(OSError):
                    client.socket.send(CONTINUE)
        else:
            client.reader.received += piece
        if len(client.reader.received) >= client.question.length:
            self._ask(client, client.question)
        else:
            self._turn_away_oldest(Place.BODY)

    def _ask(self, client: _Client, question: Question) -> None:
        """Hand a whole question to the thread that computes."""
        if len(self._clients[Place.ASKED]) >= MOST[Place.ASKED]:
            self._reply(client, BUSY)
            return
        self._move(client, Place.ASKED)
        self._selector.unregister(client.socket)
        self._questions.put((client, question, bytes(client.reader.received[: question.length])))
        client.reader.received.clear()

    def _compute(self) -> None:
        while (asked := self._questions.get()) is not None:
            client, question, body = asked
            try:
                reply = self._work(question.name, body)
            except Exception as error:
                reply = _excuse(error)
            self._replies.put((client, reply))
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # it is full, and so wakes, or it is closed
            self._waker.send(b"\0")

    def _send_replies(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(PIECE)
        while not self._replies.empty():
            client, reply = self._replies.get()
            self._selector.register(client.socket, selectors.EVENT_READ, client)
            self._reply(client, reply)

    def _reply(self, client: _Client, reply: Reply) -> None:
        """Begin to send the last that a client gets."""
        client.unsent = reply.to_bytes(head_only=client.reader.method == "HEAD")
        client.reader.received.clear()
        self._move(client, Place.LEAVING)
        self._selector.modify(client.socket, selectors.EVENT_WRITE, client)
        self._send(client)
        if len(leaving := self._clients[Place.LEAVING]) > MOST[Place.LEAVING]:
            self._drop(next(iter(leaving)))

    def _send(self, client: _Client) -> None:
        try:
            client.unsent = client.unsent[client.socket.send(client.unsent) :]
            if client.unsent:
                return
            client.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.until = time.monotonic() + LINGER_S
        self._selector.modify(client.socket, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.place][client]
        self._selector.unregister(client.socket)
        client.socket.close()


def _excuse(error: Exception) -> Reply:
    """The reply where there is no answer. An error of ours is shown at the terminal."""
    if isinstance(error, RefusedError):
        return refusal(error.status, str(error))
    sys.excepthook(type(error), error, error.__traceback__)
    return refusal(500, "simgpt went wrong: its terminal says where")
