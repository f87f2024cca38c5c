"""Command lines about what a run reads: checkpoints, weights of others, indexed datasets."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.simgpt.face import simgpt
from tests.simgpt.fuzz.damage import at, chewed, leaves, mutated
from tests.simgpt.fuzz.pieces import SPECIAL, Pieces
from tests.simgpt.fuzz.values import EVIL, NUMBERS, WEIRD

KINDS = {"checkpoint": 1, "weights": 1, "data": 1}
RUN = ("run", "tiny-30k", "--no-predict", "--batch", "2", "--timeout", "20")
SAVED, WEIGHTS = "ck", "w"
MANIFEST, TENSORS, FILE = "manifest.json", "rank-00000.safetensors", "model.safetensors"
NEWEST = f"{SAVED}/step-00000003"
MAGIC = b"MMIDIDX\x00\x00"
Header = dict[str, Any]


def stored_bases() -> dict[str, bytes]:
    """The folder of a run of three steps, and the weights that it left, by their files' names."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        words = ("--steps", "3", "--save", SAVED, "--save-every", "1", "--export-weights", WEIGHTS)
        said = simgpt(*RUN, *words)
        assert said.status == 0, said.err
        files = [each for each in Path().rglob("*") if each.is_file()]
        return {str(each): each.read_bytes() for each in files}


def signed(manifest: Any) -> bytes:
    """A manifest's file, with a digest that is right."""
    body = json.dumps(manifest, sort_keys=True)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({"sha256": digest, "manifest": json.loads(body)}).encode()


def parts_of(content: bytes) -> tuple[Header, bytes]:
    """The header of a file of safetensors, and the bytes behind it."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: Any, rest: bytes) -> bytes:
    """A file of safetensors of these parts."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


class Stored(Pieces):
    """Draws damaged checkpoints, weights and datasets. `bases` has whole ones."""

    bases: Mapping[str, bytes]

    def _checkpoint(self) -> list[str]:
        """A run that goes on from a folder whose newest checkpoint is damaged."""
        mine = {name: content for name, content in self.bases.items() if name.startswith(SAVED)}
        self.files |= mine
        if self.odds(0.1):
            names = [".lock", "step-00000009", "step-00000003.damaged", ".saving-x-00000004"]
            name = f"{SAVED}/{self.rng.choice([*names, 'step-99999999999999999999'])}"
            self.files[name] = self._special() if self.odds(0.7) else b"x"
        act: Callable[[str], None] = self.rng.choice(
            [self._bytes, self._manifest, self._manifest, self._manifest, self._header]
        )
        act(NEWEST)
        if self.odds(0.1):
            act(f"{SAVED}/step-00000002")
        args = [*RUN, "--steps", "5", "--save", SAVED]
        return [*args, "--resume-anyway" if self.odds(0.2) else "--resume"]

    def _bytes(self, checkpoint: str) -> None:
        name = f"{checkpoint}/{self.rng.choice([MANIFEST, TENSORS])}"
        content = self.files[name]
        assert isinstance(content, bytes)
        self.files[name] = chewed(self.rng, content) if self.odds(0.5) else self._special()

    def _special(self) -> str:
        return self.rng.choice(SPECIAL)

    def _manifest(self, checkpoint: str) -> None:
        """Another content under a right digest: near one number or text, or anywhere."""
        rng, name = self.rng, f"{checkpoint}/{MANIFEST}"
        manifest = self._edited(json.loads(self.bases[name])["manifest"])
        if isinstance(manifest, dict) and self.odds(0.3):
            tables = [table for table in manifest.values() if isinstance(table, dict) and table]
            table = rng.choice([manifest, *tables])
            key = rng.choice(list(table) or ["step"])
            table[key] = rng.choice([*WEIRD, 1, 2, 2**62, 2**63, 0.5, {"x": 2}, [0], [[]]])
        self.files[name] = signed(manifest)

    def _edited(self, document: Any) -> Any:
        rng = self.rng
        if self.odds(0.5):
            return mutated(rng, document, rng.randint(1, 2), [*WEIRD, 1, 2, 3, 16, 2**62, 2**63])
        numbers = [way for way in leaves(document) if isinstance(at(document, way), int)]
        for way in rng.sample(numbers, min(len(numbers), rng.randint(1, 3))):
            at(document, way[:-1])[way[-1]] = rng.choice([*NUMBERS, 0, 1, 2, 3, 32, 2**40, -1])
        return document

    def _header(self, checkpoint: str) -> None:
        """Another file of tensors, whose digest the manifest has."""
        name = f"{checkpoint}/{TENSORS}"
        content = self._tensors(self.bases[name])
        manifest = json.loads(self.bases[f"{checkpoint}/{MANIFEST}"])["manifest"]
        about = {"nbytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest["files"][TENSORS] = about
        self.files[name] = content
        self.files[f"{checkpoint}/{MANIFEST}"] = signed(manifest)

    def _tensors(self, content: bytes) -> bytes:
        """A file of safetensors with another header, another length of it, or other bytes."""
        rng = self.rng
        if self.odds(0.2):
            return chewed(rng, content)
        header, rest = parts_of(content)
        if self.odds(0.15):
            length = rng.choice([0, 1, 7, 2**31, 2**63, 2**64 - 1, len(content), len(content) - 8])
            return length.to_bytes(8, "little") + content[8:]
        name = rng.choice([key for key in header if key != "__metadata__"])
        entry, act = header[name], rng.random()
        if act < 0.25:
            entry["dtype"] = rng.choice(["F64", "F16", "BF16", "I8", "F8_E4M3", "F4", "", 7, None])
        elif act < 0.5:
            shapes = [[], [1], [0], [-1], [2**63], [2**40, 2**40], entry["shape"][::-1], "x", None]
            entry["shape"] = rng.choice(shapes)
        elif act < 0.7:
            offsets = [rng.choice([0, -1, 1, 2**63, len(rest), len(rest) + 8]) for _ in range(2)]
            entry["data_offsets"] = rng.choice([offsets, offsets, [], None, [0]])
        elif act < 0.8:
            del header[name]
        elif act < 0.9:
            header[rng.choice([*EVIL, "", "x" * 100_000])] = header.pop(name)
        else:
            header = self._edited(header)
        return joined(header, rest[: rng.choice([None, None, None, 0, -1])])

    def _weights(self) -> list[str]:
        """Weights of another program, read by the tables of their headers and then whole."""
        rng = self.rng
        mine = {name: content for name, content in self.bases.items() if name.startswith(WEIGHTS)}
        self.files |= mine
        name, config = f"{WEIGHTS}/{FILE}", f"{WEIGHTS}/config.json"
        act = rng.random()
        if act < 0.1:
            self.files[name] = self._special()
        elif act < 0.25:
            self.files[config] = json.dumps(self._edited(json.loads(mine[config]))).encode()
        elif act < 0.45:
            self._listed(name)
        else:
            self.files[name] = self._tensors(mine[name])
        place = rng.choice([WEIGHTS, WEIGHTS, name])
        if self.odds(0.8):
            out = ["--steps", "0", "--from-weights", place, "--export-weights", "out"]
            return ["run", "tiny-30k", *out]
        return [*RUN, "--steps", "1", "--from-weights", place]

    def _listed(self, name: str) -> None:
        """The file under another name, and an index that says so, or something else."""
        rng, other = self.rng, "a.safetensors"
        content = self.files.pop(name)
        self.files[f"{WEIGHTS}/{other}"] = content
        header, _ = parts_of(self.bases[name])
        places = {key: other for key in header if key != "__metadata__"}
        index: Any = {"metadata": {"total_size": 1}, "weight_map": places}
        if self.odds(0.7):
            names = ["../w/a.safetensors", "/dev/zero", ".", "..", "", "nope", *EVIL, 7, None]
            index = mutated(rng, index, rng.randint(1, 2), names)
        text = json.dumps(index).encode()
        self.files[f"{name}.index.json"] = chewed(rng, text) if self.odds(0.2) else text

    def _data(self) -> list[str]:
        """An indexed dataset whose index, or whose tokens, are not what they should be."""
        rng, size = self.rng, 2
        lengths = [rng.randint(0, 60) for _ in range(rng.randint(0, 8))]
        starts = [size * sum(lengths[:place]) for place in range(len(lengths))]
        bounds = [*range(len(lengths) + 1)]
        head = [1, 8, len(lengths), len(bounds)]
        for numbers in (head, lengths, starts, bounds):
            if numbers and self.odds(0.15):
                place = rng.randrange(len(numbers))
                numbers[place] = rng.choice([0, 1, 2, 3, 7, 100, 255, 2**31 - 1, -1])
        head = [number % 256 for number in head]
        if self.odds(0.1):
            head[rng.choice([2, 3])] = rng.choice([2**63, 2**64 - 1, 2**32, 10**6])
        index = MAGIC + struct.pack("<QBQQ", *head) + struct.pack(f"<{len(lengths)}i", *lengths)
        index += struct.pack(f"<{len(starts)}q", *starts) + struct.pack(f"<{len(bounds)}q", *bounds)
        tokens = _tokens(rng, sum(each for each in lengths if 0 < each < 1000))
        for name, content in {"d.idx": index, "d.bin": tokens}.items():
            self.files[name] = content
            if self.odds(0.15):
                self.files[name] = chewed(rng, content) if self.odds(0.6) else self._special()
        names = ["d", "d", "d", "d.bin", "d.idx", "d=0.5,d=0.5", "0.3 d 0.7 d", "d=1,e=1", "d=0"]
        args = [*RUN, "--steps", "1", "--data", rng.choice(names)]
        if self.odds(0.2):
            args += ["--eval-data", "d", "--eval-every", "1"]
        return args


def _tokens(rng: random.Random, count: int) -> bytes:
    most = rng.choice([255, 255, 255, 256, 65535])
    return struct.pack(f"<{count}H", *(rng.randint(0, most) for _ in range(count)))
