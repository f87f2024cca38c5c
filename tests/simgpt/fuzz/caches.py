"""Command lines beside damaged results of earlier ones, with digests that are right or wrong."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from tests.simgpt.face import simgpt
from tests.simgpt.fuzz.child import KEPT
from tests.simgpt.fuzz.damage import chewed
from tests.simgpt.fuzz.pieces import Pieces
from tests.simgpt.fuzz.values import NUMBERS
from topologies.files.cache_folder import VARIABLE
from topologies.kept_results import digest_of

ASKED = (
    *("predict", "tiny-30k", "-m", "perlmutter", "-n", "8", "--batch", "16", "--json"),
    *("--plan", "tp=2,z=2,dp=rest"),
)
WORDS = [
    *(0, 1, 2, 3, 8, -1, -2, 2**31, 2**62, -(2**63), 2**63 - 1, 10**6, 10**9),
    *(number for number in NUMBERS if isinstance(number, float)),
]


def kept_of(folder: Path) -> dict[str, bytes]:
    """What the question that this kind asks leaves in a cache, by name."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder / KEPT)
    try:
        said = simgpt(*ASKED)
        assert said.status == 0, said.err
    finally:
        os.environ.pop(VARIABLE)
        os.environ |= {VARIABLE: before} if before is not None else {}
    results = sorted((folder / KEPT / "results").iterdir())
    return {f"{KEPT}/results/{path.name}": path.read_bytes() for path in results}


class Caches(Pieces):
    """Draws what an earlier command may have left, and others may have changed."""

    bases: Mapping[str, bytes]

    def _cache(self) -> list[str]:
        for name in self.bases:
            if name.startswith(f"{KEPT}/"):
                self.files[name] = self._damaged(name, self.bases[name])
        return list(ASKED)

    def _damaged(self, name: str, content: bytes) -> bytes | str:
        rng = self.rng
        if self.odds(0.15):
            return chewed(rng, content)
        if self.odds(0.05):
            return rng.choice(["dir", "fifo", "dangling", "loop", "device", "big"])
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(content)
            for key, value in list(database.execute("SELECT key, value FROM kept")):
                if self.odds(0.8):
                    other = self._changed(value)
                    row = (other, digest_of(key, other), key)
                    database.execute("UPDATE kept SET value = ?, digest = ? WHERE key = ?", row)
            database.commit()
            return database.serialize()

    def _changed(self, value: bytes) -> bytes:
        """The value with numbers that were drawn in the place of some of its own."""
        rng, data = self.rng, bytearray(value)
        if self.odds(0.1):
            return chewed(rng, value)
        for _ in range(rng.choice([1, 1, 2, 5])):
            word = rng.choice(WORDS)
            at = 8 * rng.randrange(max(len(data) // 8, 1))
            data[at : at + 8] = struct.pack("<d" if isinstance(word, float) else "<q", word)
        return bytes(data)
