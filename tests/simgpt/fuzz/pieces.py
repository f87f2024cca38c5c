"""Pieces of a command line by chance: a plan, a model, a machine, where answers go."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.simgpt.fuzz.damage import as_bytes, chewed, mutated
from tests.simgpt.fuzz.values import (
    CLUSTER,
    CONFIG,
    COUNT,
    COUNTED,
    EVIL,
    MACHINES,
    MODEL,
    MODEL_KEYS,
    MODELS,
    NUMBERS,
    PLACEMENTS,
    PLAN_KEYS,
    PLANS,
    QUANTITIES,
    ROUTING,
    SETTABLE,
    SMALL,
    SWITCH,
    WEIRD,
    WHOLES,
)

SPECIAL = ("dir", "loop", "dangling", "device", "fifo", "big")  # no files at all, or endless ones


class Pieces:
    """Draws pieces with one generator, and collects the files that they name.

    A file is bytes, or the name of something else that stands in its place, one of SPECIAL.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.files: dict[str, bytes | str] = {}

    def odds(self, share: float) -> bool:
        """Yes with that probability."""
        return self.rng.random() < share

    def whole(self) -> str:
        """What should be a whole number."""
        usual = [1, 2, 2, 4, 8, 16]
        return str(self.rng.choice(WHOLES if self.odds(0.12) else usual))

    def plan(self) -> str:
        """A plan's text, or its file."""
        rng = self.rng
        if self.odds(0.05):
            return rng.choice(PLANS)
        if self.odds(0.1):
            suffix = rng.choice([".toml", ".json"])
            return self.file(suffix, {"x": 1, "data": 2, "zero": 1}, WEIRD)
        words = []
        for key in rng.sample(list(PLAN_KEYS), rng.choice([0, 1, 2, 2, 3, 5])):
            value = rng.choice(EVIL) if self.odds(0.02) else self._plan_value(PLAN_KEYS[key])
            words.append(f"{key}={value}")
        return ",".join([*words, *(["dp=rest"] if self.odds(0.85) else [])])

    def _plan_value(self, kind: Any) -> str:
        if kind == COUNT:
            return self.whole()
        if kind == SMALL:
            return self.rng.choice(["0", "1", "2", "3", "4", "-1"])
        if kind == SWITCH:
            return self.rng.choice(["true", "false", "True", "1"])
        usual: list[str] = kind[:3] if self.odds(0.5) else kind
        return self.rng.choice(usual)

    def file(self, suffix: str, document: Any, values: Sequence[Any]) -> str:
        """A file of a damaged document, or of bytes that are none, or no file at all."""
        rng, name, act = self.rng, f"f{len(self.files)}{suffix}", self.rng.random()
        is_toml = suffix == ".toml"
        if act < 0.7:
            times = rng.choice([0, 1, 1, 1, 2, 4])
            self.files[name] = as_bytes(mutated(rng, document, times, values), toml=is_toml)
        elif act < 0.88:
            self.files[name] = chewed(rng, as_bytes(document, toml=is_toml))
        else:
            others: list[bytes | str] = [*self._no_documents(document, is_toml), *SPECIAL]
            self.files[name] = rng.choice(others)
        return name

    def _no_documents(self, document: Any, is_toml: bool) -> list[bytes]:
        deep = self.rng.choice([30, 50, 500, 5000, 100000])
        return [
            *(b"", b"\x00", b"\xff\xfe\x00", self.rng.randbytes(300)),
            b"\xef\xbb\xbf" + as_bytes(document, toml=is_toml),
            b"[" * deep,
            b"[" * deep + b"]" * deep,
            b'{"a":' * deep + b"1" + b"}" * deep,
            b"x = " + b"[" * deep + b"]" * deep,
            b"x = " + b"9" * 5000,
            b'{"x": ' + b"9" * 5000 + b"}",
            b"a." * min(deep, 5000) + b"b = 1",
            b"x = 1979-05-27",
            b'{"rows":[' + b"{}," * min(8 * deep, 300_000) + b"{}]}",
        ]

    def model(self) -> str:
        """A model by name, or its file."""
        rng = self.rng
        if self.odds(0.8):
            return rng.choice(MODELS)
        if self.odds(0.2):
            some = rng.sample(MODEL_KEYS, rng.randint(0, 2))
            return ",".join(f"{key}={self.whole()}" for key in dict.fromkeys([*MODEL, *some]))
        if self.odds(0.2):
            keys = rng.sample(list(CONFIG), rng.randint(0, 3))
            drawn = {key: rng.choice([1, 2, 0, -1, None, "x", True, 1e9, 8]) for key in keys}
            return self.file(".json", CONFIG | drawn, WEIRD)
        if self.odds(0.1):
            names = [
                "",
                "gpt-5",
                "nope.toml",
                "/",
                "/dev/null",
                "..",
                "tiny-2M",
                "n" * 300 + ".toml",
            ]
            return rng.choice([*names, *EVIL])
        keys = rng.sample(MODEL_KEYS, rng.randint(0, 2))
        sizes = [*[1, 2, 8, 64, 10**4, 10**7] * 3, *NUMBERS]
        document = {**MODEL, **{key: rng.choice(sizes) for key in keys}}
        return self.file(rng.choice([".toml", ".json"]), json.loads(json.dumps(document)), WEIRD)

    def machine(self) -> str:
        """A machine by name, or its file."""
        rng = self.rng
        if self.odds(0.75):
            return rng.choice(MACHINES)
        if self.odds(0.15):
            names = ["", ":", "frontier:", "frontier:nope", ":x", "a:b:c", "nope.json", "/.toml"]
            return rng.choice([*names, *EVIL])
        suffix = rng.choice([".toml", ".json"])
        return self.file(suffix, CLUSTER, [*WEIRD, *QUANTITIES, *QUANTITIES])

    def settings(self) -> list[str]:
        """Some `--set`; a few of them large counts together."""
        rng, found = self.rng, []
        while self.odds(0.25):
            value = rng.choice([*QUANTITIES, *map(str, NUMBERS), *EVIL])
            usual = [f"{rng.choice(SETTABLE)}={value}"] * 9
            found += ["--set", rng.choice([*usual, value, "=1", "a"])]
        if self.odds(0.03):
            for key in rng.sample(COUNTED, 3):
                found += ["--set", f"{key}={rng.choice([64, 1000, 10**5, 10**6, 10**8])}"]
        return found

    def asked(self) -> list[str]:
        """A model on a machine under a plan."""
        args = [self.model(), "-m", self.machine()]
        args += ["-n", self.whole()] if self.odds(0.7) else []
        args += ["--plan", self.plan()] if self.odds(0.85) else []
        args += ["--batch", self.whole()] if self.odds(0.5) else []
        args += ["--batch-tokens", self.whole()] if self.odds(0.07) else []
        args += ["--placement", self.rng.choice(PLACEMENTS)] if self.odds(0.2) else []
        if self.odds(0.07):
            args += ["--model-set", f"{self.rng.choice(MODEL_KEYS)}={self.whole()}"]
        if self.odds(0.04):
            document = {key: ROUTING[key] for key in self.rng.choice([["tokens"], list(ROUTING)])}
            args += ["--routing", self.file(self.rng.choice([".toml", ".json"]), document, WEIRD)]
        return args + self.settings()

    def out(self) -> list[str]:
        """Where the answer goes."""
        args = ["--json"] if self.odds(0.6) else []
        if self.odds(0.05):
            places = ["out.json", "nope/out.json", ".", "/dev/full", "", "/proc/x", "f0.toml"]
            args += ["-o", self.rng.choice([*places, "o" * 300])]
        return args
