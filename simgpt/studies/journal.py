"""The folder of a study's results: `study.json` says what was asked, `results.jsonl` has the rows.

A row is one line of JSON, and line n is the row of point n; nothing in it depends on when, where or
by how many workers it was made, so the same study gives the same bytes:

    {"id": 3,                  the point's number, from 0
     "point": {...},           all keys of the point by their full names: "model", "machine",
                               "devices", "plan", "plan.zero", "machine.device.launch", …
     "status": "ok",           or "infeasible": the plan cannot run or does not fit into memory;
                               or "error": the simulator failed, which is a bug
     "reason": "",             one sentence where the status is not ok
     "prediction": {...},      what `simgpt predict --json` gives but for "placement"; null if there
                               is none; a plan that does not fit into memory has one
     "training": {...},        where the study gives `tokens`: steps, time_s, node_s, energy_j
     "scaling": {...},         in a scaling study: kind, tokens_per_s_per_device, and efficiency
                               relative to the first rung, null where either cannot run
     "checksum": "..."}        of all of the above, as `validation.checksums` makes it

`study.json` has `format`, `simgpt`, `title`, `points` (how many), `varied` (the keys that differ
among points), `base`, `point`, `sweep` and `scaling` as the study gave them, and digests of the
`inputs` (models and machines) and of the `code` that predicted. `asked` has the command that made
the folder, where the study lies, and digests of the files that it names; a sweep that goes on may
have been asked for in other words.

Rows are appended in the order of their points as soon as all before them are there. So however a
sweep ends, the file is a beginning of the whole; what follows its last good line (a line cut in the
middle) is cut off by the next sweep, which goes on from there. A whole line that is not the row
that was written, by its checksum, its keys or its point, is no good line: it is named, and it and
all rows after it are predicted anew.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from simgpt.asked import asked_of_study
from simgpt.options import strict
from simgpt.studies.errors import ResultsError, StudyError
from simgpt.studies.evaluate import Row
from simgpt.studies.inputs import Inputs
from simgpt.studies.keys import Point
from simgpt.studies.study import Study
from validation.checksums import CHECKSUM, checksum_of

FORMAT = 2
STUDY, RESULTS = "study.json", "results.jsonl"
KEYS = ("id", "point", "status", "reason", "prediction", "training", "scaling", CHECKSUM)
STATUSES = ("ok", "infeasible", "error")
UNSYNCED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # where a file system has no fsync
# What a disk fails with, whatever was asked of it.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Journal:
    """The results of a study in a folder, to be continued; only one process at a time may.

    `done` rows are there. `damage` says of a row that was found damaged and is to be made anew, or
    is empty.
    """

    def __init__(self, folder: Path, study: Study, inputs: Inputs) -> None:
        self._folder = folder
        self._study = study
        with _writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = _locked(folder)
        self.damage = ""
        try:
            with _writable(folder):
                _claim(folder, study_record(study, inputs))
                self.done = self._synced = self._continued()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def append(self, row: Row) -> None:
        """Write the next row; once this returns, the end of this process does not undo it, and once
        `sync` does, neither does a loss of power."""
        assert row["id"] == self.done
        left = line_of(row)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            raise self._unwritten(error) from None
        self.done += 1

    def sync(self) -> None:
        """Wait until all rows so far are on the disk."""
        if self._synced == self.done:
            return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            if error.errno not in UNSYNCED:
                raise self._unwritten(error) from None
        self._synced = self.done

    def _unwritten(self, error: OSError) -> ResultsError:
        path = self._folder / RESULTS
        return ResultsError(f"cannot write {path}: {error.strerror}; the rows before are kept")

    def _continued(self) -> int:
        """How many good rows there are; whatever follows them is cut off."""
        end = done = 0
        with (self._folder / RESULTS).open("rb") as file:
            for point, line in zip(self._study.points(), file, strict=False):
                if fault := _fault(line, done, point):
                    self.damage = self._damaged(done, fault) if line.endswith(b"\n") else ""
                    break
                end, done = end + len(line), done + 1
        if os.lseek(self._descriptor, 0, os.SEEK_END) > end:
            os.truncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)
        return done

    def _damaged(self, number: int, fault: str) -> str:
        path = self._folder / RESULTS
        return f"row {number} in {path} {fault}; it and the rows after it are predicted anew"


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        kind = ResultsError if error.errno in DISK else StudyError
        raise kind(f"cannot write results into {folder}: {why}") from None


def rows_in(folder: Path) -> Iterator[Row]:
    """All rows of a folder's results, without their checksums, which a journal has checked."""
    with (folder / RESULTS).open("rb") as file:
        for line in file:
            row: Row = json.loads(line)
            yield {key: value for key, value in row.items() if key != CHECKSUM}


def study_record(study: Study, inputs: Inputs) -> dict[str, Any]:
    """What `study.json` holds."""
    return {
        "format": FORMAT,
        "simgpt": metadata.version("simgpt"),
        **study.as_dict(),
        "inputs": dict(inputs.digests),
        "code": inputs.code,
        "asked": asked_of_study(study),
    }


def line_of(row: Row) -> bytes:
    """A row as it stands in the file, with its checksum."""
    content = strict({key: value for key, value in row.items() if key != CHECKSUM})
    whole = content | {CHECKSUM: checksum_of(content)}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _locked(folder: Path) -> int:
    """The file of rows, held against other sweeps; a folder of something else is refused."""
    results = folder / RESULTS
    if not (folder / STUDY).exists() and results.exists() and results.stat().st_size:
        raise StudyError(
            f"{folder} has {RESULTS}, but no {STUDY} that says of which study; "
            "give another folder with -o"
        )
    descriptor = os.open(results, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StudyError(f"another sweep is writing into {folder}; wait for it") from None
    except OSError:
        return descriptor  # a file system without locks: nothing can be held against others there
    return descriptor


def _claim(folder: Path, record: dict[str, Any]) -> None:
    """Say whose the folder is, or refuse it if it is another study's."""
    path = folder / STUDY
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    if not path.exists():
        _publish(path, text)
        return
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        earlier = None
    if _same(earlier) != _same(json.loads(text)):
        raise StudyError(
            f"{folder} holds the results of another study: {_difference(earlier, record)}; "
            "give another folder with -o, or remove this one"
        )


def _publish(path: Path, text: str) -> None:
    """Put a file in its place whole: whoever ends meanwhile, this process or the power, there is
    either no such file or all of it."""
    draft = path.with_suffix(".json.part")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        if draft.is_file():
            draft.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """See to it that the names in a folder outlast a loss of power, where folders can be synced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _same(record: Any) -> Any:
    """What must be the same to go on: all but how the sweep was first asked for."""
    if not isinstance(record, dict):
        return record
    return {key: value for key, value in record.items() if key != "asked"}


def _difference(earlier: Any, record: dict[str, Any]) -> str:
    if not isinstance(earlier, dict):
        return f"its {STUDY} cannot be read"
    if earlier.get("code") != record["code"] or earlier.get("format") != FORMAT:
        return "it was made by another version of simgpt"
    for table in ("base", "sweep", "scaling", "inputs"):
        before, now = earlier.get(table) or {}, json.loads(json.dumps(record[table])) or {}
        for key in (*now, *before):
            if before.get(key) != now.get(key):
                return f"{key} differs"
    return "its title or its points differ"


def _fault(line: bytes, number: int, point: Point) -> str:
    """Why a line is not the whole row of a point; nothing if it is."""
    if not line.endswith(b"\n"):
        return "is cut short"
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or row.get(CHECKSUM) is None:
            return "has no checksum"
        if line != line_of(row):
            return "is not as it was written (its checksum tells)"
    except (ValueError, RecursionError):
        return "is no JSON"
    same = json.loads(json.dumps(point))
    if not (_has_shape(row) and row.get("id") == number and row.get("point") == same):
        return "is no row of that point"
    return ""


def _has_shape(row: Row) -> bool:
    """Whether a row has all keys of a row and nothing else, each in its kind."""
    if tuple(row) != KEYS or row["status"] not in STATUSES or not isinstance(row["reason"], str):
        return False
    tables = [row[key] for key in ("prediction", "training", "scaling")]
    if not all(table is None or isinstance(table, dict) for table in tables):
        return False
    return row["status"] != "ok" or row["prediction"] is not None
