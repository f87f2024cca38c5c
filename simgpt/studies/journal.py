"""The folder of a study's results: `study.json` says what was asked, `results.jsonl` has the rows.

A row is one line of JSON, and line n is the row of point n; nothing in it depends on when, where or
by how many workers it was made, so the same study gives the same bytes:

    {"id": 3,                  the point's number, from 0
     "point": {...},           all keys of the point by their full names: "model", "machine",
                               "devices", "plan", "plan.zero", "machine.device.launch", …
     "status": "ok",           or "infeasible": the plan cannot run or does not fit into memory;
                               or "error": the simulator failed, which is a bug; the next
                               sweep predicts it anew
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
sweep ends, the file is a beginning of the whole; a line cut in the middle at its end is cut off by
the next sweep, which goes on from there. A whole line that is not the row that was written, by its
checksum, its keys or its point, is no good line: it is named, and its row predicted anew. Good rows
behind one that is damaged or missing are kept: `results.jsonl.kept` has them until they are in
their places again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from simgpt.invocation import asked_of_study
from simgpt.question_rows import QuestionError
from simgpt.studies.errors import ResultsError
from simgpt.studies.evaluate import Row
from simgpt.studies.inputs import Inputs
from simgpt.studies.rows import checked, line_of, lines_in, row_of
from simgpt.studies.study import Study
from topologies.files.locking import locked
from topologies.files.reading import ANSWER_BYTES, UserFile
from topologies.files.writing import sync_folder, write_whole

FORMAT = 2
STUDY, RESULTS, KEPT = "study.json", "results.jsonl", "results.jsonl.kept"
_STUDY = UserFile("record of a study", QuestionError, ANSWER_BYTES)
UNSYNCED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # where a file system has no fsync
# What a disk fails with, whatever was asked of it.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Journal:
    """The results of a study in a folder, to be continued; only one process at a time may.

    `done` rows are there, and `kept` has good rows behind one that is not, by their numbers, until
    they are appended. `damage` says of a row that was found damaged and is to be made anew, or is
    empty.
    """

    def __init__(self, folder: Path, study: Study, inputs: Inputs) -> None:
        self._folder = folder
        self._study = study
        with _writable(folder):
            _make(folder)
            self._descriptor = _locked(folder)
        self.damage = ""
        self.kept: dict[int, Row] = {}
        self._has_kept = os.path.lexists(folder / KEPT)
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
        self._forget_kept()

    def _unwritten(self, error: OSError) -> ResultsError:
        path = self._folder / RESULTS
        return ResultsError(f"cannot write {path}: {error.strerror}; the rows before are kept")

    def _continued(self) -> int:
        """How many good rows there are at the beginning; whatever follows them is cut off, but the
        good rows of it set aside before."""
        end = done = 0
        whole, behind = True, dict[int, bytes]()
        for number, line, fault in self._found_in(RESULTS):
            if whole and number == done:
                end, done = end + len(line), done + 1
                continue
            if whole and line.endswith(b"\n") and done < len(self._study):
                other = "is missing" if number > done else "is there twice"
                self.damage = self._damaged(done, fault or other)
            whole = False
            if number >= done:
                behind[number] = line
        self._set_aside(done, behind)
        if os.lseek(self._descriptor, 0, os.SEEK_END) > end:
            os.truncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)
        return done

    def _found_in(self, name: str) -> Iterator[tuple[int, bytes, str]]:
        """The lines of a file: the number of the row each is, or -1 and why it is none."""
        points, scaled = list(self._study.points()), self._study.scaling is not None
        for line in lines_in(self._folder / name):
            number, fault = checked(line, points, scaled)
            yield number, line, fault

    def _set_aside(self, done: int, behind: dict[int, bytes]) -> None:
        """Keep good rows from `done` on: those just found, and those that an earlier sweep kept."""
        path, every = self._folder / KEPT, dict(behind)
        if self._has_kept:
            every |= {number: line for number, line, _ in self._found_in(KEPT) if number >= done}
        if behind:
            self._has_kept = True
            write_whole(path, b"".join(every[number] for number in sorted(every)))
        self.kept = {number: row_of(line) for number, line in every.items()}
        self._forget_kept()

    def _forget_kept(self) -> None:
        """Remove the file of rows that were kept once all are in their places on the disk."""
        if self._has_kept and not self.kept:
            (self._folder / KEPT).unlink(missing_ok=True)
            self._has_kept = False

    def _damaged(self, number: int, fault: str) -> str:
        path = self._folder / RESULTS
        return (
            f"row {number} in {path} {fault}; it is predicted anew, as are all others that are not "
            "as they were written"
        )


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.filename and Path(error.filename).parent == folder:
            why = f"{Path(error.filename).name}: {why}"
        kind = ResultsError if error.errno in DISK else QuestionError
        raise kind(f"cannot write results into {folder}: {why}") from None


def rows_in(folder: Path) -> Iterator[Row]:
    """All rows of a folder's results, without their checksums, which a journal has checked."""
    return map(row_of, lines_in(folder / RESULTS))


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


def _make(folder: Path) -> None:
    """Make the folder, with those above it, so that a loss of power does not undo it."""
    made = [each for each in (folder, *folder.parents) if not os.path.isdir(each)]
    folder.mkdir(parents=True, exist_ok=True)
    for each in made:
        sync_folder(each.parent)


def _locked(folder: Path) -> int:
    """The file of rows, held against other sweeps; a folder of something else is refused."""
    try:
        descriptor, _ = locked(folder / RESULTS)
    except BlockingIOError:
        raise QuestionError(f"another sweep is writing into {folder}; wait for it") from None
    if os.fstat(descriptor).st_size and not os.path.exists(folder / STUDY):
        os.close(descriptor)
        raise QuestionError(
            f"{folder} has {RESULTS}, but no {STUDY} that says of which study; "
            "give another folder with -o"
        )
    return descriptor


def _claim(folder: Path, record: dict[str, Any]) -> None:
    """Say whose the folder is, or refuse it if it is another study's."""
    path = folder / STUDY
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    if not os.path.exists(path):
        write_whole(path, text)
        return
    try:
        earlier = _STUDY.document(path)
    except QuestionError:
        earlier = None
    if _same(earlier) != _same(json.loads(text)):
        raise QuestionError(
            f"{folder} holds the results of another study: {_difference(earlier, record)}; "
            "give another folder with -o, or remove this one"
        )


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
        if not isinstance(before, dict):
            return f"{table} differs"
        for key in (*now, *before):
            if before.get(key) != now.get(key):
                return f"{key} differs"
    return "its title or its points differ"
