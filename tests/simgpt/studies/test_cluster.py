"""A Dask cluster makes the same bytes; what it cannot do is said in one sentence."""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from simgpt.studies import cluster
from simgpt.studies.cluster import Slurm, slurm_jobs
from simgpt.studies.errors import WorkersError
from simgpt.studies.inputs import Inputs, inputs_of
from simgpt.studies.journal import RESULTS
from simgpt.studies.sweep_rows import SweepResources, sweep_into
from tests.messages import assert_names, names
from tests.simgpt.face import assert_golden, simgpt
from tests.simgpt.studies.processes import (
    PATIENCE_S,
    begin,
    count,
    finish,
    wait_for_rows,
    write_study,
)
from tests.simgpt.studies.worlds import SMALL, study

wants_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None
    or importlib.util.find_spec("dask_jobqueue") is None,
    reason="Dask is not installed: pip install 'simgpt[cluster]'",
)
wants_tls = pytest.mark.skipif(
    importlib.util.find_spec("cryptography") is None,
    reason="cryptography is not installed: pip install 'simgpt[cluster]'",
)
# Dask's own warnings, and those of what it leaves open when its workers are killed, are not ours.
quiet = pytest.mark.filterwarnings("ignore")


@contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


def pids(cluster: Any) -> list[int]:
    return [worker.pid for worker in cluster.workers.values()]


@wants_dask
@quiet
@pytest.mark.slow
def test_two_dask_workers_one_killed_midway_make_the_same_bytes(tmp_path: Path) -> None:
    asked = study(SMALL, sweep={"layers": list(range(1, 21)), "tp": [1, 2, 3]})
    inputs = inputs_of(asked)
    sweep_into(tmp_path / "alone", asked, inputs, SweepResources(), lambda _: None)
    killed: list[int] = []
    with local_cluster(2) as cluster:

        def progress(done: int) -> None:
            if done == 7:
                killed.append(pids(cluster)[0])
                os.kill(killed[0], signal.SIGKILL)

        workers = SweepResources(2, cluster.scheduler_address, timeout_s=PATIENCE_S)
        sweep_into(tmp_path / "dask", asked, inputs, workers, progress)
    assert len(killed) == 1
    files = [tmp_path / name / RESULTS for name in ("alone", "dask")]
    assert files[0].read_bytes() == files[1].read_bytes()


@wants_dask
@quiet
@pytest.mark.slow
def test_a_scheduler_file_does_as_well_as_an_address(tmp_path: Path) -> None:
    asked = write_study(tmp_path, 3)
    with local_cluster(1) as cluster:
        place = tmp_path / "scheduler.json"
        from distributed import Client

        with Client(cluster, set_as_default=False) as client:
            client.write_scheduler_file(str(place))
        words = ("sweep", str(asked), "--json", "--timeout", str(PATIENCE_S))
        there = simgpt(*words, "-o", str(tmp_path / "a"), "--scheduler", str(place))
    here = simgpt(*words, "-o", str(tmp_path / "b"))
    assert (there.status, there.err) == (here.status, here.err) == (0, "")
    assert (tmp_path / "a" / RESULTS).read_bytes() == (tmp_path / "b" / RESULTS).read_bytes()


def dask(role: str, place: Path, *words: str) -> subprocess.Popen[bytes]:
    """A scheduler or a worker of Dask as a process of its own."""
    module = f"distributed.cli.dask_{role}"
    command = [sys.executable, "-m", module, "--scheduler-file", str(place), "--no-dashboard"]
    return subprocess.Popen([*command, *words], stderr=subprocess.DEVNULL)


@wants_dask
@pytest.mark.slow
def test_a_sweep_goes_on_elsewhere_after_its_scheduler_was_killed(tmp_path: Path) -> None:
    asked, place, results = write_study(tmp_path, 20), tmp_path / "s.json", tmp_path / "o" / RESULTS
    scheduler = dask("scheduler", place, "--port", "0", "--host", "127.0.0.1")
    worker = dask("worker", place, "--nthreads", "1", "--death-timeout", "20")
    try:
        wait_for_file(place)
        sweep = begin(asked, tmp_path / "o", "--scheduler", str(place), "--timeout", "50")
        wait_for_rows(sweep, results, 5)
        scheduler.kill()
        out, err = sweep.communicate(timeout=PATIENCE_S)
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait(PATIENCE_S)
    assert (sweep.returncode, out) == (5, "")
    assert_names(err, "Dask")
    assert err.count("\n") == 1
    assert 5 <= count(results) < 120
    finish(begin(asked, tmp_path / "o"))
    finish(begin(asked, tmp_path / "whole"))
    assert results.read_bytes() == (tmp_path / "whole" / RESULTS).read_bytes()


def wait_for_file(path: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text(encoding="utf-8").endswith("}")):
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.05)


@wants_dask
@quiet
@pytest.mark.slow
def test_dask_workers_of_another_version_are_refused(tmp_path: Path) -> None:
    asked = study(SMALL, sweep={"tp": [1, 2]})
    inputs = inputs_of(asked)
    other = Inputs(inputs.models, inputs.machines, inputs.stacks, inputs.digests, "another")
    with local_cluster(1) as cluster:
        workers = SweepResources(1, cluster.scheduler_address, timeout_s=PATIENCE_S)
        with pytest.raises(WorkersError, check=names("version")):
            sweep_into(tmp_path, asked, other, workers, lambda _: None)


@wants_dask
@quiet
@pytest.mark.slow
def test_a_cluster_without_workers_is_not_waited_for_without_end(tmp_path: Path) -> None:
    asked = study(SMALL, sweep={"tp": [1, 2]})
    with local_cluster(0) as cluster:
        workers = SweepResources(1, cluster.scheduler_address, timeout_s=1.0)
        with pytest.raises(WorkersError, check=names("1 s", "--timeout")):
            sweep_into(tmp_path, asked, inputs_of(asked), workers, lambda _: None)


@pytest.mark.slow
@wants_dask
@quiet
def test_a_scheduler_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simgpt.studies.cluster.CONNECT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    study_file = write_study(tmp_path, 1)
    said = simgpt("sweep", str(study_file), "-o", str(tmp_path), "--scheduler", f"127.0.0.1:{port}")
    assert said.status == 5
    assert_names(said.sentence, "Dask", f"127.0.0.1:{port}")


@wants_dask
@pytest.mark.parametrize("address", ["bogus::x//", "tcp://", "nobody.invalid:80", "nothing://x:1"])
def test_an_address_of_nothing_is_named(address: str, tmp_path: Path) -> None:
    study_file = write_study(tmp_path, 1)
    said = simgpt("sweep", str(study_file), "-o", str(tmp_path / "o"), "--scheduler", address)
    assert said.status == 5
    assert_names(said.sentence, "Dask")
    assert address in said.sentence


@wants_dask
@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[]", "scheduler"),
        ("{}", "scheduler"),
        ("[" * 100_000, "32"),
    ],
)
def test_a_broken_scheduler_file_is_refused(content: str, named: str, tmp_path: Path) -> None:
    place = tmp_path / "scheduler.json"
    place.write_text(content, encoding="utf-8")
    study_file = write_study(tmp_path, 1)
    said = simgpt("sweep", str(study_file), "-o", str(tmp_path / "o"), "--scheduler", str(place))
    assert said.status == 5
    assert_names(said.sentence, "scheduler.json", named)


@pytest.mark.timeout(60)
def test_a_scheduler_file_that_is_none_is_neither_waited_for_nor_a_traceback(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    with pytest.raises(WorkersError, check=names("fifo.json")):
        cluster._address(str(tmp_path / "fifo.json"))
    with pytest.raises(WorkersError, check=names("none.json", os.strerror(errno.ENOENT))):
        cluster._address(str(tmp_path / "none.json"))
    assert cluster._address("a" * 300) == "a" * 300


def test_a_folder_that_is_gone_holds_no_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(WorkersError), cluster._private_folder():
        pass


@pytest.mark.parametrize(
    ("workers", "cores", "jobs"), [(64, 32, 2), (65, 32, 3), (63, 32, 2), (3, 32, 1), (3, 1, 3)]
)
def test_a_job_of_slurm_may_be_partly_filled(workers: int, cores: int, jobs: int) -> None:
    assert Slurm(workers=workers, cores=cores).jobs == jobs


@wants_dask
@wants_tls
@quiet
def test_the_script_of_a_slurm_job_reads_as_its_golden_file(tmp_path: Path) -> None:
    slurm = Slurm(workers=64, cores=32, partition="batch", account="abc123", time="02:00:00")
    assert slurm.jobs == 2
    with slurm_jobs(slurm, tmp_path) as jobs:
        script = jobs.job_script()
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert_golden("slurm-job.txt", "\n".join(lines) + "\n")
    assert "distributed.cli.dask_worker" in script


@wants_dask
@wants_tls
@quiet
def test_a_sweeps_scheduler_has_one_port_and_talks_to_those_with_its_certificate_alone(
    tmp_path: Path,
) -> None:
    from distributed import Client

    before = listening()
    with slurm_jobs(Slurm(workers=2), tmp_path) as jobs:
        address, script = jobs.scheduler_address, jobs.job_script()
        (port,) = listening() - before
        assert address.startswith("tls://")
        assert address.endswith(f":{port}")
        assert strangers(address, address.replace("tls://", "tcp://")) == ["refused", "refused"]
        with Client(jobs, timeout=PATIENCE_S, set_as_default=False) as client:
            assert client.run_on_scheduler(os.getpid) == os.getpid()
    for words in (
        "--protocol tls://",
        f"--tls-ca-file {tmp_path}/cert.pem",
        f"--tls-cert {tmp_path}/cert.pem",
        f"--tls-key {tmp_path}/key.pem",
        "--no-dashboard --dashboard-address 127.0.0.1:0",
    ):
        assert words in script
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


STRANGER = """
import sys
from distributed import Client
for address in sys.argv[1:]:
    try:
        Client(address, timeout=5)
    except (OSError, TypeError):
        print("refused")
    else:
        print("taken")
"""


def strangers(*addresses: str) -> list[str]:
    """What becomes of a process without the certificate that connects to each address."""
    words = [sys.executable, "-c", STRANGER, *addresses]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.stdout.split()


def listening() -> set[int]:
    """The ports on which this process listens."""
    own = set()
    for number in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own
            own.add(os.readlink(number))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


@wants_dask
@wants_tls
@quiet
def test_the_scheduler_and_the_jobs_stay_on_one_network_if_asked_to(tmp_path: Path) -> None:
    with slurm_jobs(Slurm(workers=1, interface="lo"), tmp_path) as jobs:
        assert jobs.scheduler_address.startswith("tls://127.0.0.1:")
        assert "--interface lo" in jobs.job_script()


@wants_dask
@wants_tls
@quiet
def test_the_jobs_certificate_is_the_users_alone_and_goes_with_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with cluster._private_folder() as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
    spaced = tmp_path / "a b"
    spaced.mkdir()
    monkeypatch.chdir(spaced)
    with pytest.raises(WorkersError, check=names(str(spaced))), cluster._private_folder():
        pass


@wants_dask
@quiet
def test_a_scheduler_with_tls_and_no_certificate_here_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tls://127.0.0.1:{taken.getsockname()[1]}"
        words = ("-o", str(tmp_path / "o"), "--scheduler", address)
        said = simgpt("sweep", str(write_study(tmp_path, 1)), *words)
    assert said.status == 5
    assert_names(said.sentence, "Dask", address, "TLS")


SBATCH = """#!/bin/sh
[ "$1" = --test-only ] && exit 0
cp "$1" {folder}/job.sh
setsid sh {folder}/job.sh > {folder}/job.log 2>&1 < /dev/null &
echo "$!" >> {folder}/started
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
kill -- "-$1"
echo "$1" >> {folder}/cancelled
"""


@wants_dask
@wants_tls
@quiet
@pytest.mark.slow
def test_jobs_of_a_slurm_that_starts_them_here_make_the_same_bytes_and_end_with_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tmp_path / name).write_text(text.format(folder=tmp_path), encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    asked = study(SMALL, sweep={"layers": [1, 2], "tp": [1, 2, 3]})
    inputs = inputs_of(asked)
    sweep_into(tmp_path / "alone", asked, inputs, SweepResources(), lambda _: None)
    slurm = SweepResources(1, slurm=Slurm(workers=1), timeout_s=PATIENCE_S)
    sweep_into(tmp_path / "slurm", asked, inputs, slurm, lambda _: None)
    files = [tmp_path / name / RESULTS for name in ("alone", "slurm")]
    assert files[0].read_bytes() == files[1].read_bytes()
    started, cancelled = ((tmp_path / name).read_text() for name in ("started", "cancelled"))
    assert started == cancelled != ""


@wants_dask
@wants_tls
@quiet
def test_what_slurm_says_against_a_job_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = "#!/bin/sh\necho 'sbatch: error: invalid partition specified: nope' >&2\nexit 1\n"
    (tmp_path / "sbatch").write_text(refuses, encoding="utf-8")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = ("--slurm", "--partition", "nope", "--workers", "3", "--timeout", "5")
    said = simgpt("sweep", str(write_study(tmp_path, 1)), "-o", str(tmp_path / "o"), *words)
    assert said.status == 5
    assert_names(said.sentence, "Slurm", "sbatch: error: invalid partition specified: nope")


@wants_dask
@wants_tls
def test_slurm_without_slurm_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = simgpt("sweep", str(write_study(tmp_path, 1)), "-o", str(tmp_path / "o"), "--slurm")
    assert said.status == 5
    assert_names(said.sentence, "sbatch")


@pytest.mark.slow
@wants_dask
def test_ctrl_c_keeps_its_meaning_though_dask_jobqueue_is_imported() -> None:
    script = (
        "import signal; from simgpt.studies.cluster import _jobqueue; "
        "before = signal.getsignal(signal.SIGINT); _jobqueue(); "
        "assert signal.getsignal(signal.SIGINT) is before"
    )
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


@pytest.mark.parametrize("error", [ValueError, CancelledError])
def test_whatever_a_cluster_fails_with_is_said_in_a_line(error: type[BaseException]) -> None:
    said = names("Dask", error.__name__, "broken pipe")
    with pytest.raises(WorkersError, check=said) as raised, cluster._in_a_sentence():
        raise error("broken\npipe")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("words", [("--scheduler", "127.0.0.1:1"), ("--slurm",)])
def test_missing_dask_is_said_with_what_brings_it(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def without_dask(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("distributed", "dask_jobqueue") else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_dask)
    said = simgpt("sweep", str(write_study(tmp_path, 1)), "-o", str(tmp_path / "o"), *words)
    assert said.status == 5
    assert_names(said.sentence, "pip install 'simgpt[cluster]'")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--slurm", "--scheduler", "tp"), ["--slurm", "--scheduler"]),
        (("--partition", "batch"), ["--partition", "--slurm"]),
        (("--cores", "4"), ["--cores", "--slurm"]),
        (("--interface", "ib0"), ["--interface", "--slurm"]),
    ],
)
def test_options_that_do_not_go_together(
    words: tuple[str, ...], named: list[str], tmp_path: Path
) -> None:
    said = simgpt("sweep", str(write_study(tmp_path, 1)), *words)
    assert said.status == 2
    assert_names(said.sentence, *named)
