"""One input by chance: a command line with its files, always the same for a seed and a number."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping, Sequence

from tests.simgpt.fuzz import stored
from tests.simgpt.fuzz.caches import Caches
from tests.simgpt.fuzz.calibrations import Calibrations
from tests.simgpt.fuzz.damage import as_bytes, at, chewed, leaves, mutated
from tests.simgpt.fuzz.frameworks import Frameworks
from tests.simgpt.fuzz.requests import Requests
from tests.simgpt.fuzz.stored import Stored
from tests.simgpt.fuzz.tokenizers import Tokenizers
from tests.simgpt.fuzz.values import (
    EVIL,
    MODELS,
    NUMBERS,
    PLAN_KEYS,
    SETTABLE,
    STUDY,
    STUDY_TEXT,
    WEIRD,
)

WEIGHTS = {
    **{
        "predict": 36,
        "sweep": 14,
        "folder": 8,
        "report": 8,
        "bench": 8,
        "machines": 8,
        "models": 4,
    },
    **{"search": 3, "why": 2, "validate": 5, "run": 2, "words": 2},
    **{"import": 8, "export": 5, "compare": 6, "sbatch": 4, "costly": 2},
    **{"recipe": 5, "config": 5, "titan": 4, "stacks": 4, "routing": 3, "plan_run": 4, "gzip": 3},
    **{"http": 8},
    **stored.KINDS,
    **{"calibration": 6, "cache": 3, "tokenizer": 2},
}
TORCH = ("run", "tokenizer", *stored.KINDS)  # which import it
QUICK = tuple(kind for kind in WEIGHTS if kind not in TORCH)
SPANS = [
    *("1MiB:8MiB", "16:64", "1:1", "0:0", "8:4", ":", "1:", "1B:1EiB", "1:1e18", "nan:nan", "1 B"),
    *("16", "2:99999999", "-1:4", "1MiB:1MB", "9" * 400 + ":1", "1:1:1", "1e-9 B:1 B", "3:50"),
]


class Draw(Frameworks, Requests, Stored, Calibrations, Caches, Tokenizers):
    """Input `number` of a seed. `bases` are good answers, to be damaged."""

    def __init__(
        self, seed: int, number: int, bases: Mapping[str, bytes], kinds: Sequence[str]
    ) -> None:
        super().__init__(random.Random(f"{seed}/{number}"))
        self.bases, self.number = bases, number
        self.kind = self.rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        drawn: list[str] = getattr(self, f"_{self.kind}")()
        self.args = [word.replace("\0", "") for word in drawn]  # no argument has a NUL

    def _predict(self) -> list[str]:
        rng = self.rng
        args = ["predict", *self.asked(), *self.out()]
        if self.odds(0.08):
            tokens = ["300B", "0", "-1", "nan", "1e308T", "1e300", "k", "B", "1.5", "1e9B", "١B"]
            args += ["--tokens", rng.choice(tokens)]
        if self.odds(0.08):
            keys = [*PLAN_KEYS, "devices", "layers", "hidden", "device.launch", "machine.nodes"]
            for _ in range(rng.randint(1, 2)):
                values = ",".join(self.whole() for _ in range(rng.randint(0, 3)))
                args += ["--sweep", f"{rng.choice([*keys, 'model.vocab', 'batch'])}={values}"]
        if self.odds(0.03):
            args += ["--trace", rng.choice(["t.json", "/dev/full", "no/t.json"])]
        args += ["--compute", "profile"] if self.odds(0.05) else []
        return args + self._noise()

    def _noise(self) -> list[str]:
        rng, args = self.rng, list[str]()
        shares = ["2%", "0%", "100%", "101%", "-1%", "nan%", "1e400%", "2", "%", "", "٢%"]
        for flag, values in {
            "--noise": shares,
            "--spread": shares,
            "--slow": ["1%:5%", "0%:0%", "1%", "1%:5%:2%", ":", "nan%:5%", *shares],
            "--samples": ["2", "3", "1", "0", "-1", "10001", "x"],
            "--seed": ["1", "4294967295", "4294967296", "-1"],
        }.items():
            if self.odds(0.06):
                args += [flag, rng.choice(values)]
        return args

    def _why(self) -> list[str]:
        return ["why", *self.asked(), *self.out(), *self._noise()]

    def _search(self) -> list[str]:
        rng = self.rng
        args = ["search", *self.asked(), "--workers", rng.choice(["1", "1", "2"])]
        args += ["--time-limit", "5", *self.out()]
        for flag, values in {
            "--top": ["1", "1000", "0"],
            "--objective": ["energy", "node-hours", "x"],
            "--rank-by": ["axonn"],
            "--also-devices": ["4,8", "0", "", "1,1", "9" * 5000, "10000000"],
            "--gap": ["2%", "nan", "1", "-0"],
            "--fits": ["0.5", "99%", "0", "1"],
            "--memory-front": [""],
            "--exhaustive": [""],
        }.items():
            if self.odds(0.1):
                args += [flag, *filter(None, [rng.choice(values)])]
        return args

    def _bench(self) -> list[str]:
        rng = self.rng
        args = ["bench-network", "-m", self.machine(), *self.settings(), *self.out()]
        args += ["--sizes", rng.choice(SPANS)] if self.odds(0.6) else []
        args += ["--devices", rng.choice(SPANS)] if self.odds(0.6) else []
        kinds = ["all_reduce", "all_to_all", "send_recv", "broadcast", "x"]
        ways = ["ring", "tree", "hierarchical", "cheapest", "auto", "x", ""]
        args += ["--collective", rng.choice(kinds)] if self.odds(0.5) else []
        return args + (["--algorithm", rng.choice(ways)] if self.odds(0.4) else [])

    def _machines(self) -> list[str]:
        args = ["machines", *([self.machine()] if self.odds(0.9) else []), *self.out()]
        figures = ["m.png", "m.svg", "m.txt", "no/m.png"]
        return args + (["--figure", self.rng.choice(figures)] if self.odds(0.1) else [])

    def _models(self) -> list[str]:
        return ["models", *([self.model()] if self.odds(0.9) else []), *self.out()]

    def _validate(self) -> list[str]:
        rng, what = self.rng, self.rng.choice(["kernels", "network", "published", "memory", "host"])
        if what == "host":  # only names that are no machines: a machine would be trained on
            return ["validate", "host", "-m", rng.choice(["nope.json", *EVIL]), *self.out()]
        suffix, base = ".json" if what == "network" else ".csv", self.bases[what]
        name = f"v{suffix}"
        if self.odds(0.4):
            self.files[name] = chewed(rng, base)
        elif what == "network":
            self.files[name] = as_bytes(mutated(rng, json.loads(base), rng.randint(1, 4), WEIRD))
        else:
            rows = [line.split(",") for line in base.decode().splitlines()]
            for _ in range(rng.randint(1, 5)):
                row = rng.choice(rows)
                cell = str(rng.choice([*WEIRD, *WEIRD, "1e9", "-5", "2"])).replace("\n", " ")
                row[rng.randrange(len(row))] = cell
            text = "\n".join(",".join(row) for row in rows)
            self.files[name] = text.encode(errors="surrogatepass")
        return ["validate", what, "--data", name, *self.out()]

    def _sweep(self) -> list[str]:
        rng = self.rng
        values = [*WEIRD, 1, 2, 4, "best", "tiny-1m", "f1.toml", "a\0.toml"]
        document = mutated(rng, STUDY, rng.randint(0, 3), values)
        for _ in range(rng.randint(0, 2)):
            table = rng.choice(["set", "sweep", "scaling"])
            where = document if self.odds(0.3) else document.setdefault(table, {})
            if isinstance(where, dict):
                lists = [[1, 2], ["a"], [[1]], ["5 us"], [["gpt2", 8, 8]]]
                keys = [*PLAN_KEYS, *SETTABLE, "kind", "ladder", "devices", "layers", "model.vocab"]
                where[rng.choice(keys)] = rng.choice([*WEIRD, 2, 4, *lists, "strong", "weak"])
        if self.odds(0.15):
            name = self.file(".toml", STUDY, WEIRD)
        else:
            name = "s.toml"
            self.files[name] = as_bytes(document, toml=True)
        args = ["sweep", name, *self.out()]
        orders = ["time", "memory", "energy", "x"]
        args += ["--sort", rng.choice(orders)] if self.odds(0.2) else []
        return args + (["--limit", rng.choice(["1", "0", "99"])] if self.odds(0.1) else [])

    def _folder(self) -> list[str]:
        """A sweep that goes on in a damaged folder: refused, or ended as if nothing happened."""
        rng, study, results = self.rng, self.bases["study.json"], self.bases["results.jsonl"]
        self.files["s.toml"] = STUDY_TEXT.encode()
        self.files["r/study.json"] = chewed(rng, study) if self.odds(0.25) else study
        act = rng.random()
        if act < 0.55:
            results = chewed(rng, results)
        elif act < 0.7:
            rows = [json.loads(line) for line in results.splitlines()]
            rows[rng.randrange(len(rows))] = mutated(rng, rng.choice(rows), 1, WEIRD)
            results = b"\n".join(map(as_bytes, rows)) + b"\n"
        elif act < 0.8:
            results += results[: rng.randrange(len(results))]
        elif act < 0.9:
            results = b"\n".join(rng.choices(results.splitlines(), k=6)) + b"\n"
        if self.odds(0.95):
            self.files["r/results.jsonl"] = results
        return ["sweep", "s.toml", "-o", "r", "--json"]

    def _report(self) -> list[str]:
        names = []
        for number in range(self.rng.choice([1, 1, 1, 2, 3])):
            kinds = ["predict", "why", "search", "sweep", "run", "validation", "results.jsonl"]
            base = self.rng.choice([*kinds, "calendar"])
            name = f"a{number}.json" + "l" * base.endswith("l")
            self.files[name] = self._rows() if base.endswith("l") else self._answer(base)
            names.append(name)
        if self.odds(0.03):
            self.files["page.html"] = self.rng.choice(["dir", "fifo", "dangling"])
        return ["report", *names, "-o", "page.html"]

    def _rows(self) -> bytes:
        rng, base = self.rng, self.bases["results.jsonl"]
        rows = (chewed(rng, base) if self.odds(0.7) else base).split(b"\n")
        place = rng.randrange(len(rows))
        if self.odds(0.5) and rows[place].startswith(b"{") and rows[place].endswith(b"}"):
            with contextlib.suppress(ValueError):
                rows[place] = as_bytes(mutated(rng, json.loads(rows[place]), 2, WEIRD))
        return b"\n".join(rows)

    def _answer(self, base: str) -> bytes:
        rng = self.rng
        if self.odds(0.15):
            return chewed(rng, self.bases[base])
        document = json.loads(self.bases[base])
        if self.odds(0.5):  # hostile words wherever there are words
            places = [way for way in leaves(document) if isinstance(at(document, way), str)]
            for way in rng.sample(places, min(len(places), rng.randint(1, 6))):
                at(document, way[:-1])[way[-1]] = rng.choice(EVIL)
        if self.odds(0.7):
            document = mutated(rng, document, rng.randint(1, 3), WEIRD)
        return as_bytes(document)

    def _run(self) -> list[str]:
        """Mostly what is refused before ranks start; the rest is one tiny step."""
        rng = self.rng
        self.files |= {"empty": b"", "short": b"a" * 16, "binary": rng.randbytes(500)}
        texts = ["empty", "short", "nope.txt", ".", "/dev/null", "binary"]
        args = ["run", rng.choice(["tiny-30k", self.model()]), "--timeout", "20"]
        args += ["--steps", rng.choice(["1", "1", "0", "x"])]
        for flag, share, values in (
            ("--plan", 0.8, [self.plan()]),
            ("--data", 0.6, texts),
            ("--ranks", 0.5, ["1", "2", "33", "10000000", "0"]),
            ("--batch", 0.5, ["2", "3", "16"]),
            ("--port", 0.1, ["1", "65535", "0", "99999"]),
            ("--lr", 0.2, ["1e30", "nan", "inf", "0", "-1"]),
            ("--seed", 0.1, ["4294967296", "4294967297", "-1"]),
        ):
            args += [flag, rng.choice(values)] if self.odds(share) else []
        args += ["-m", self.machine()] if self.odds(0.4) else ["--no-predict"]
        return [*args, *self.out()]

    def _words(self) -> list[str]:
        """No command at all, or one of words from everywhere."""
        flags = ["--json", "-m", "-n", "-o", "--plan", "--set", "--", "-", "--help", "--version"]
        pool = [*WEIGHTS, *flags, "frontier", "gpt-5b", *map(str, NUMBERS), *EVIL, *MODELS]
        words = [self.rng.choice(pool) for _ in range(self.rng.randint(0, 7))]
        return [word.encode("utf-8", "replace").decode() for word in words]
