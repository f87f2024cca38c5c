"""Workers of a Dask cluster: one that runs already, or one that Slurm starts for the sweep.

Dask comes with the extra `cluster`. It hands a dead worker's batches to the others by itself.

Whoever may talk to a Dask scheduler may run any code in its process. So the one of a sweep talks
TLS alone, to those that have its certificate: this process, and the jobs, which find it in a folder
that nobody but the user can read. Nothing else of it listens: no dashboard, no page of any kind.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import shutil
import signal
import subprocess
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

from simgpt.studies.errors import WorkersError
from simgpt.studies.evaluate import Batch, Row, rows_of
from simgpt.studies.inputs import Inputs
from simgpt.studies.workers import AHEAD
from topologies.files.printable import path_shown
from topologies.files.reading import ANSWER_BYTES, UserFile
from topologies.interpreter import child_environment
from topologies.records import record
from topologies.session import Session

_SCHEDULER = UserFile("scheduler file", WorkersError, ANSWER_BYTES)  # it lists all workers
CONNECT_S = 30.0
MEMORY_GIB = 2  # for each process of a job


@record(slots=False)
class Slurm:
    """The jobs that hold the workers: `workers` processes, `cores` of them in a job. All listen on
    one network `interface` alone if it is given."""

    workers: int
    cores: int = 1
    partition: str | None = None
    account: str | None = None
    time: str = "01:00:00"
    interface: str | None = None

    @property
    def jobs(self) -> int:
        """How many jobs that makes."""
        return -(-self.workers // self.cores)


class DaskWorkers:
    """The workers of a Dask cluster; `timeout_s` without any finished batch is the end."""

    def __init__(self, client: Any, inputs: Inputs, workers: int, timeout_s: float) -> None:
        self._client = client
        self._inputs = inputs
        self._workers = workers
        self._timeout_s = timeout_s
        self._under_way: dict[Any, int] = {}

    @property
    def room(self) -> int:
        """A few batches for each worker."""
        return AHEAD * self._workers

    def start(self, number: int, batch: Batch) -> None:
        """Hand the batch to the scheduler."""
        with _in_a_sentence():
            future = self._client.submit(rows_on_worker, self._inputs, batch, pure=False)
        self._under_way[future] = number

    def finished(self) -> tuple[int, list[Row]]:
        """The rows of whichever batch is done first."""
        import distributed

        with _in_a_sentence(), self._client.as_current():
            try:
                done = distributed.wait(
                    list(self._under_way), timeout=self._timeout_s, return_when="FIRST_COMPLETED"
                ).done
            except TimeoutError:
                raise WorkersError(
                    f"no row was finished within {self._timeout_s:.0f} s (--timeout); are there "
                    "any workers? the rows before are kept"
                ) from None
            future = min(done, key=self._under_way.__getitem__)
            rows: list[Row] = future.result(timeout=CONNECT_S)
            return self._under_way.pop(future), rows


def rows_on_worker(inputs: Inputs, batch: Batch) -> list[Row]:
    """The rows of some points, in the session of the Dask worker that runs this."""
    import distributed

    worker = distributed.get_worker()
    with vars(worker).setdefault("simgpt_session", Session()):
        return rows_of(inputs, batch)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep Dask's log to itself: what matters of it is said in a sentence."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """Turn whatever a cluster fails with, a lost scheduler too, into one sentence."""
    try:
        yield
    except WorkersError:
        raise
    except (Exception, CancelledError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise WorkersError(
            f"the Dask cluster gave up ({what[:200]}); the rows before are kept"
        ) from None


@contextmanager
def dask_cluster(
    where: str, inputs: Inputs, workers: int, timeout_s: float
) -> Iterator[DaskWorkers]:
    """The workers of the scheduler at an address, or of the one that wrote a scheduler file."""
    _require("distributed")
    from distributed import Client
    from distributed.comm import resolve_address

    address = _address(where)
    try:
        resolve_address(address)  # a Client of a senseless address takes a minute to go away
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
        # Without certificates in Dask's configuration a tls:// address is a TypeError.
        why = " ".join(str(error).split())[:200]
        raise WorkersError(f"cannot reach a Dask scheduler at {address}: {why}") from None
    with _silent(), client:
        threads = sum(client.nthreads().values()) or 1
        yield DaskWorkers(client, inputs, max(threads, workers), timeout_s)


def _address(where: str) -> str:
    """The scheduler's address, from the file that `dask scheduler --scheduler-file` writes."""
    if not (where.endswith(".json") or os.path.isfile(where)):
        return where
    said = _SCHEDULER.document(where)
    if not isinstance(said, dict) or not isinstance(said.get("address"), str):
        raise WorkersError(
            f"{path_shown(where)} is not a scheduler file of Dask: it has no address"
        )
    return str(said["address"])


@contextmanager
def slurm_cluster(slurm: Slurm, inputs: Inputs, timeout_s: float) -> Iterator[DaskWorkers]:
    """Workers in jobs of Slurm, which end with the sweep."""
    for module in ("dask_jobqueue", "cryptography"):
        _require(module)
    if shutil.which("sbatch") is None:
        raise WorkersError("there is no sbatch here; --slurm needs a login node of the cluster")
    from distributed import Client

    with _silent(), _private_folder() as folder:
        with _in_a_sentence():
            jobs = slurm_jobs(slurm, folder)
        try:
            _check_job(jobs.job_script())
            with _in_a_sentence():
                jobs.scale(jobs=slurm.jobs)
                client = Client(jobs, timeout=CONNECT_S, set_as_default=False)
            with client:
                yield DaskWorkers(client, inputs, slurm.workers, timeout_s)
        finally:
            with suppress(Exception):  # jobs that Slurm refused after all do not close in order
                jobs.close(timeout=CONNECT_S)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder for the certificate, which nobody else can read: where the jobs start, so that they
    see it too."""
    try:
        here = os.getcwd()
    except OSError:
        raise WorkersError("the folder that the sweep starts in is not there any more") from None
    if " " in here:
        raise WorkersError(
            f"Dask's jobs find no certificate in {here}, whose name has a space; start the "
            "sweep in another folder"
        )
    try:
        folder = TemporaryDirectory(prefix=".simgpt-sweep-", dir=here)
    except OSError as error:
        raise WorkersError(
            f"cannot write the jobs' certificate into {here}: {error.strerror}"
        ) from None
    with folder as name:
        yield Path(name)


def _check_job(script: str) -> None:
    """Ask Slurm whether it would take the job: what it says against it, Dask would only log."""
    with NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:
        file.write(script)
        file.flush()
        try:
            asked = subprocess.run(
                ["sbatch", "--test-only", file.name],
                capture_output=True,
                text=True,
                timeout=CONNECT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise WorkersError(f"cannot ask sbatch: {error}") from None
    if asked.returncode:
        raise WorkersError(f"Slurm refuses the job: {' '.join(asked.stderr.split())[:300]}")


def slurm_jobs(slurm: Slurm, folder: Path) -> Any:
    """The description of such jobs, with the certificate in a folder; nothing is submitted yet."""
    return _jobqueue().SLURMCluster(
        queue=slurm.partition,
        account=slurm.account,
        walltime=slurm.time,
        cores=slurm.cores,
        processes=slurm.cores,
        memory=f"{MEMORY_GIB * slurm.cores} GiB",
        job_name="simgpt-sweep",
        interface=slurm.interface,
        protocol="tls://",
        security=_certificate(folder),
        job_script_prologue=_prologue(),
        scheduler_cls=_scheduler_without_pages(),
        # A worker's page of figures cannot be left out: it is for its own node alone.
        worker_extra_args=["--no-dashboard", "--dashboard-address", "127.0.0.1:0"],
    )


def _prologue() -> list[str]:
    """What a job runs before its workers: the lines that Dask's own configuration has, and what
    keeps workers from importing the folder that they start in."""
    import dask

    given: list[str] = dask.config.get("jobqueue.slurm.job-script-prologue", None) or []
    own = child_environment().items()
    return [*given, *(f"export {name}={shlex.quote(value)}" for name, value in own)]


def _jobqueue() -> Any:
    """dask-jobqueue. Imported, it makes Ctrl-C end the process in silence, with status 0: what was
    to happen then is set again."""
    before = signal.getsignal(signal.SIGINT)
    import dask_jobqueue

    signal.signal(signal.SIGINT, before)
    return dask_jobqueue


def _certificate(folder: Path) -> Any:
    """A certificate made for one sweep, in files for the jobs to read."""
    from distributed.security import Security

    made = Security.temporary().get_tls_config_for_role("worker")
    paths = {}
    for part, text in (("cert", made["cert"]), ("key", made["key"])):
        paths[part] = folder / f"{part}.pem"
        paths[part].touch(mode=0o600)
        paths[part].write_text(text, encoding="ascii")
    roles = {
        f"tls_{role}_{part}": str(path)
        for role in ("client", "scheduler", "worker")
        for part, path in paths.items()
    }
    return Security(require_encryption=True, tls_ca_file=str(paths["cert"]), **roles)


def _scheduler_without_pages() -> type:
    """Dask's scheduler, but for its HTTP server, which no option keeps from listening."""
    from distributed import Scheduler
    from distributed.http.routing import RoutingApplication
    from tornado.httpserver import HTTPServer

    class Pageless(Scheduler):  # type: ignore[misc]
        """A scheduler that listens for those that have its certificate, and for nobody else."""

        def start_http_server(self, routes: Any, *_: object, **__: object) -> None:
            """Have the server that others ask for, without a port."""
            self.http_application = RoutingApplication(routes)
            self.http_server = HTTPServer(self.http_application)

    return Pageless


def _require(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise WorkersError(
            f"{module} is not installed; pip install 'simgpt[cluster]' brings Dask and its jobs"
        )
