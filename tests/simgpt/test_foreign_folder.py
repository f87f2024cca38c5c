"""Nothing of the folder where the user stands is imported, whatever its files are called."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor.launching import devices
from simgpt.studies.cluster import Slurm, slurm_jobs
from simulator.pool import Pool
from tests.simgpt.studies.processes import write_study
from topologies.interpreter import apart_from_the_folder, child_environment
from validation.published.predicting import WORTH_A_POOL, processes

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("topologies", "workload", "simulator", "executor", "validation", "simgpt")
LIBRARIES = ("click", "distributed", "numpy", "safetensors", "simpy", "sitecustomize", "torch")
MARK = "import os\nopen({mark!r}, 'a').write(__name__ + '\\n')\n"
PATH = "__import__('sys').path"


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every name that the product or Python's library imports leaves its mark,
    but for what Python imports before it has read a line of a module that it is to run."""
    folder = tmp_path_factory.mktemp("foreign")
    ask = [sys.executable, "-I", "-S", "-c", "import runpy, sys; print(*sys.modules)"]
    first = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()
    text = f"{MARK.format(mark=str(folder / 'MARK'))}raise ImportError(__name__)\n"
    for name in sys.stdlib_module_names - set(first):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    for name in (*PRODUCT[:-1], *LIBRARIES):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def foreign(marked: Path) -> Path:
    (marked / "MARK").unlink(missing_ok=True)
    return marked


def run(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**known, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                "predict tiny-30k -m frontier --plan dp=2",
                "search tiny-30k -m perlmutter -n 2 --batch 2 --plan y=1,tp=1 --workers 2",
            )
        ),
        pytest.param("sweep {study} -o {results} --workers 2", id="sweep"),
        pytest.param(
            "run tiny-30k --steps 1 --no-predict --ranks 1",
            marks=[pytest.mark.distributed, pytest.mark.slow],
        ),
    ],
)
def test_a_command_runs_in_a_folder_of_foreign_modules(
    command: str, foreign: Path, tmp_path: Path
) -> None:
    words = command.format(study=write_study(tmp_path, 3), results=tmp_path / "r").split()
    done = run(["-m", "simgpt", *words], foreign, PYTHONPATH=str(ROOT))
    assert not (foreign / "MARK").exists(), (foreign / "MARK").read_text(encoding="utf-8")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.distributed
def test_a_checkout_is_run_from_its_own_folder(tmp_path: Path) -> None:
    """Its ranks come from there too, whatever else is installed."""
    for name in PRODUCT:
        (tmp_path / name).mkdir()
        for entry in (ROOT / name).iterdir():
            (tmp_path / name / entry.name).symlink_to(entry)
    worker = tmp_path / "executor" / "worker.py"
    text = MARK.format(mark=str(tmp_path / "MARK")) + worker.read_text(encoding="utf-8")
    worker.unlink()
    worker.write_text(text.replace("from __future__ import annotations", ""), encoding="utf-8")
    done = run(["-m", "simgpt", *["run", "tiny-30k", "--steps", "1", "--no-predict"]], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "MARK").read_text(encoding="utf-8") == "__main__\n"


def test_torch_is_asked_for_devices_outside_the_folder(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0+cu128")
    monkeypatch.setattr(devices, "ASK", "import random, json; print(0)")
    assert devices.accelerators() == 0
    assert not (foreign / "MARK").exists()


def test_processes_of_a_console_do_not_look_for_modules_where_it_stands(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})  # one core is this process
    # As a console and as a notebook have the folder.
    monkeypatch.setattr(sys, "path", ["", str(foreign), *sys.path])
    with processes(WORTH_A_POOL) as each:
        paths = list(each(eval, [PATH] * 4, 1))
    with Pool(1) as search:
        paths += search.map(eval, [PATH])
    for path in paths:
        assert not {"", str(foreign)} & set(path)
    assert sys.path[:2] == ["", str(foreign)]
    assert not (foreign / "MARK").exists()


def test_a_folder_that_pythonpath_names_is_the_users_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    with apart_from_the_folder():
        assert sys.path[0] == str(tmp_path)
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert child_environment() == {"PYTHONSAFEPATH": "1"}
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with apart_from_the_folder():
        assert str(tmp_path) not in sys.path
    assert not {"PYTHONPATH", "PYTHONSAFEPATH"} & set(os.environ)


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("dask_jobqueue", "cryptography"))),
    reason="Dask is not installed: pip install 'simgpt[cluster]'",
)
@pytest.mark.filterwarnings("ignore")
def test_workers_in_jobs_of_slurm_do_not_either(tmp_path: Path) -> None:
    import dask

    prologue = "jobqueue.slurm.job-script-prologue"
    with slurm_jobs(
        Slurm(workers=1), tmp_path
    ):  # after which there is Dask's configuration of jobs
        before = dask.config.get(prologue)
    dask.config.set({prologue: ["module load python"]})
    try:
        with slurm_jobs(Slurm(workers=1), tmp_path) as jobs:
            lines = jobs.job_script().splitlines()
    finally:
        dask.config.set({prologue: before})
    worker = next(at for at, line in enumerate(lines) if "dask_worker" in line)
    assert {"module load python", "export PYTHONSAFEPATH=1"} < set(lines[:worker])
