"""A release names one version everywhere, and is tested on the Pythons that it names."""

from __future__ import annotations

import configparser
import re

import pytest
import yaml

from tests.test_house import ROOT

WORKFLOWS = ("test.yml", "nightly.yml")
ELSEWHERE = re.compile("torch|nvidia-.*|cuda-.*|triton")


def setup() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / "setup.cfg", encoding="utf-8")
    return parsed


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere() -> None:
    version = setup()["metadata"]["version"]
    listed = re.findall(r"^## \[(\d[^]]*)\]", text("CHANGELOG.md"), re.MULTILINE)
    assert yaml.safe_load(text("CITATION.cff"))["version"] == version == listed[0]
    assert listed == sorted(listed, reverse=True)


def test_hosted_tests_run_on_every_python_that_is_supported() -> None:
    supported = re.findall(r"Python :: (3\.\d+)", setup()["metadata"]["classifiers"])
    jobs = yaml.safe_load(text(".github/workflows/test.yml"))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported
    runs = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    wanted = {f"make {what} PYTHON=python" for what in ("test", "dist", "wheels")}
    assert wanted <= set(runs)


def test_what_an_extra_names_has_an_exact_version() -> None:
    pinned = set(re.findall(r"^([\w-]+)==", text("constraints.txt"), re.MULTILINE))
    wanted = [setup()["options"]["install_requires"], *setup()["options.extras_require"].values()]
    names = {name for each in wanted for name in re.findall(r"^([\w-]+)>=", each, re.MULTILINE)}
    assert names <= pinned
    assert {"build", "twine", "torch", "numpy"} <= names


def test_every_exact_version_has_the_digests_of_its_files() -> None:
    """But for torch and what its build for GPUs pulls, which come from an index of their own."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", text("constraints.txt"), re.MULTILINE))
    ours = {name: version for name, version in pins.items() if not ELSEWHERE.fullmatch(name)}
    entries = text("hashes.txt").replace(" \\\n", " ").splitlines()[1:]
    hashed = {}
    for entry in entries:
        pin, *digests = entry.split()
        assert digests
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in digests)
        name, _, version = pin.partition("==")
        hashed[name] = version
    assert hashed == ours


def test_what_all_tests_found_is_kept_each_night_also_where_some_failed() -> None:
    jobs = yaml.safe_load(text(".github/workflows/nightly.yml"))["jobs"]
    steps = jobs["test-all"]["steps"]
    (tests,) = (at for at, step in enumerate(steps) if "make test-all" in step.get("run", ""))
    record, kept = steps[tests + 1 :]
    assert (record["if"], kept["if"]) == ("always()", "always()")
    *_, junit, written, _, summary = record["run"].split()
    assert f"--junitxml={junit}" in text("Makefile")
    assert (kept["with"]["path"], summary) == (written, '"$GITHUB_STEP_SUMMARY"')


@pytest.mark.parametrize("name", WORKFLOWS)
def test_hosted_tests_take_nothing_that_can_change_under_its_name(name: str) -> None:
    """Actions are pinned by commit, packages by digest, and no name is served by two indexes."""
    workflow = text(f".github/workflows/{name}")
    used = re.findall(r"uses: (\S+)", workflow)
    assert len(used) >= 3
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", each) for each in used)
    assert "--require-hashes" in workflow
    assert "--require-hashes" in text(".ci/run")
    assert "EXTRA_INDEX" not in workflow
