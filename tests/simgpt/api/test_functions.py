"""The functions of `import simgpt` ask what their commands ask, with the same options."""

from __future__ import annotations

import ast
import inspect
import json
import shlex
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
import pytest

import simgpt as api
from simgpt.api import jobs, lookups, steps
from simgpt.api.result import Result
from simgpt.api.words import found_of, keywords_of, option_words
from simgpt.cli import COMMANDS, cli
from simgpt.commands.validate import command as comparisons
from tests.examples import one_in, slow
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt

PLAN = "tp=2,z=2,dp=2,mbs=2"
FEW = {
    "pp": 1,
    "y": 1,
    "z": 1,
    "mbs": 1,
    "zero": 0,
    "recompute": "none",
    "overlap": "none",
}
STUDY = (
    'model = "tiny-1m"\nmachine = "frontier"\ndevices = 8\nbatch = 16\nsweep = {z = [1, 2, 64]}\n'
)


def command_of(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def same_as_command(result: Result) -> None:
    """Its JSON is what its command line prints, but for `--json` in that line."""
    said = simgpt(*shlex.split(result.command)[1:], "--json")
    assert said.status == result.status
    record = json.loads(said.out)
    if "asked" in record:
        asked = record["asked"]["command"]
        assert asked == f"{result.command} --json"
        record["asked"]["command"] = result.command
    assert json.loads(json.dumps(result.to_dict())) == record


ASKED: dict[str, Callable[[], Result]] = {
    "predict": lambda: api.predict("tiny-1m", "frontier", PLAN, batch=16, tokens="1B"),
    "mappings": lambda: api.predict(
        "tiny-1m",
        "frontier",
        {"tp": 2, "dp": "rest", "overlap": ["dp", "oar"], "sp": True},
        devices=8,
        batch=16,
        set={"device.launch": "9 us"},
        model_set={"sequence": 128},
        noise="2%",
        samples=3,
    ),
    "sweep": lambda: api.predict("tiny-1m", "frontier", batch=64, sweep={"devices": (8, 16)}),
    "why": lambda: api.why("tiny-30k", "frontier", "dp=2", batch=4, all_numbers=True),
    "search": lambda: api.search(
        "tiny-30k", "frontier", 4, batch=4, plan=FEW, also_devices=[2], workers=1
    ),
    "axonn": lambda: api.search("tiny-1m", "frontier", 8, batch=16, rank_by="axonn"),
    "plan_run": lambda: api.plan_run(
        "tiny-1m", "frontier", PLAN, batch=16, tokens="1B", mtbf="1d", start="2026-01-01", draws=20
    ),
    "machine": lambda: api.machine("frontier"),
    "machines": api.machine,
    "model": lambda: api.model("gpt-5b", model_set={"sequence": 4096}),
    "models": api.model,
    "validate": lambda: api.validate("network", table="dgx_h100_nccl_allreduce_8gpu"),
}


@pytest.mark.parametrize(
    "name", [*one_in(2, [name for name in ASKED if name != "why"]), *slow("why")]
)
def test_a_result_has_the_json_of_its_command(name: str) -> None:
    same_as_command(ASKED[name]())


def test_a_study_is_swept_into_its_folder(tmp_path: Path) -> None:
    study = tmp_path / "plans.toml"
    study.write_text(STUDY, encoding="utf-8")
    found = api.sweep(study, output=tmp_path / "rows", workers=1)
    assert [row["status"] for row in found.rows()] == ["ok", "ok", "infeasible"]
    assert (tmp_path / "rows" / "results.jsonl").exists()
    same_as_command(found)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bench-network": api.bench_network,
    "calibrate": api.calibrate,
    "compare": api.compare,
    "export": api.export,
    "import": api.import_job,
    "machines": api.machine,
    "models": api.model,
    "plan-run": api.plan_run,
    "predict": api.predict,
    "report": api.report,
    "run": api.run,
    "sbatch": api.sbatch,
    "search": api.search,
    "stacks": api.stack,
    "sweep": api.sweep,
    "why": api.why,
}
WITHOUT = {
    "serve",
    "completion",
    "memorise",
    "validate",
}  # commands without a function of their own


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """The names of a function's parameters; an editor sees each of them, with its type."""
    found = inspect.signature(function).parameters.values()
    assert all(each.annotation is not inspect.Parameter.empty for each in found)
    assert inspect.Parameter.VAR_KEYWORD not in {each.kind for each in found}
    return {"files" if each.name == "answers" else each.name for each in found}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_options_of_its_command_one_by_one(name: str) -> None:
    assert parameters_of(FUNCTIONS[name]) == set(keywords_of(command_of(name)))


def test_every_command_that_answers_has_a_function() -> None:
    assert {*FUNCTIONS, *WITHOUT} == set(COMMANDS)


def test_comparisons_have_the_options_of_their_commands() -> None:
    every = {key for each in comparisons.commands.values() for key in keywords_of(each)}
    assert parameters_of(api.validate) - {"comparison"} == every
    names = get_args(lookups.ComparisonName)
    assert set(names) == set(comparisons.commands)


def test_the_public_surface_fits_on_a_postcard() -> None:
    own = {each.__name__ for each in (*FUNCTIONS.values(), api.validate)}
    assert {*own, "Question", "Session", "SimgptError", "__version__"} == set(api.__all__)
    assert all(getattr(api, name).__doc__ for name in own)
    assert {each.__module__ for each in FUNCTIONS.values()} == {
        module.__name__ for module in (steps, jobs, lookups)
    }


def test_editors_see_every_public_name() -> None:
    """They read the stub beside the package, whose names the package itself imports when asked."""
    stub = ast.parse(Path(api.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    names = {
        each.asname for node in stub.body if isinstance(node, ast.ImportFrom) for each in node.names
    }
    assert {*names, "__version__"} == set(api.__all__)
    for node in (each for each in stub.body if isinstance(each, ast.ImportFrom)):
        assert getattr(api, node.names[0].name).__module__ == node.module


def test_the_version_is_that_of_the_package() -> None:
    text = Path("setup.cfg").read_text(encoding="utf-8")
    assert f"version = {api.__version__}\n" in text or api.__version__ == "unknown"
    with pytest.raises(AttributeError, check=names("predictt")):
        api.predictt  # type: ignore[attr-defined]  # noqa: B018


REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], list[str]]] = {
    "unknown": (api.predict, {"btch": 16}, ["predict", "btch", "batch"]),
    "kind": (api.predict, {"batch": "x"}, ["batch", "'x'"]),
    "bounds": (api.predict, {"devices": 0}, ["devices", "0"]),
    "list": (api.predict, {"batch": [1, 2]}, ["batch", "[1, 2]"]),
    "true": (api.predict, {"batch": True}, ["batch", "True"]),
    "flag": (api.why, {"all_numbers": "yes"}, ["all_numbers", "True", "False", "'yes'"]),
    "two": (api.predict, {"batch": 1, "batch_tokens": 1}, ["batch", "batch_tokens"]),
    "nested": (api.predict, {"set": {"device": {"launch": 1}}}, ["set['device']"]),
    "comma": (api.predict, {"sweep": {"machine": ["64x8xH100,8xNDR"]}}, ["64x8xH100,8xNDR"]),
    "goes without": (api.predict, {"sweep": {"z": [1]}, "trace": "t.json"}, ["sweep", "trace"]),
    "json": (api.predict, {"json": True}, ["predict", "json"]),
    "missing": (
        lambda *_, **__: api.search("gpt-5b", "frontier", 8),
        {},
        ["search", "batch", "batch_tokens"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_told_in_one_sentence_in_the_words_of_python(name: str) -> None:
    function, options, named = REFUSED[name]
    with pytest.raises(api.SimgptError, check=names(*named)) as refused:
        function("tiny-1m", "frontier", PLAN, **options)
    assert "\n" not in str(refused.value)
    assert "--" not in str(refused.value)


def test_an_argument_is_never_taken_for_an_option() -> None:
    with pytest.raises(api.SimgptError, check=names("model", "'--help'")):
        api.predict("--help", "frontier")
    study = keywords_of(command_of("sweep"))["study"]
    assert option_words(study, found_of(study, "study", "-x.toml")) == ["./-x.toml"]


def test_a_switch_is_on_where_it_is_true_alone() -> None:
    switch = keywords_of(command_of("why"))["all_numbers"]
    words = [option_words(switch, found_of(switch, "all_numbers", on)) for on in (True, False)]
    assert words == [["--all-numbers"], []]


def test_a_command_that_ends_without_an_answer_raises() -> None:
    """In a process of its own: here hypothesis watches the garbage collector, and what is raised
    while it does is lost."""
    script = """
import simgpt
try:
    simgpt.search("gpt-640b", "frontier", 32768, batch=8192, time_limit=0.1, workers=1)
except simgpt.SimgptError as refused:
    print(refused.exit_code, refused)
"""
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("5 ")
    assert_names(done.stdout, "0.1 s")


def test_an_unknown_comparison_is_refused() -> None:
    with pytest.raises(api.SimgptError, check=names("validate", "'hosts'", "anchored")):
        api.validate("hosts")  # type: ignore[arg-type]


def test_what_a_command_says_is_a_warning_at_the_line_that_asks() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = api.predict("gpt-640b", "frontier", "dp=8", batch=8)
    assert [each.filename for each in said] == [__file__]
    assert_names(str(said[0].message), "GiB")
    assert (found.status, found.fits, found.notes) == (3, False, (str(said[0].message),))


def test_a_time_limit_is_kept_outside_the_main_thread_too() -> None:
    """Signals cannot end it there; the clock is looked at between steps of the search."""
    said: list[str] = []

    def asked() -> None:
        try:
            found = api.search("gpt-640b", "frontier", 32768, batch=8192, time_limit=0.2, workers=1)
            said.append("not stopped" if found.optimal else "")
        except (api.SimgptError, UserWarning) as error:
            assert_names(str(error), "0.2 s")
            said.append("")

    thread = threading.Thread(target=asked)
    thread.start()
    thread.join()
    assert said == [""]


SCRIPT = """
import simgpt, sys
heavy = {'click', 'numpy', 'torch', 'matplotlib', 'pandas', 'networkx'} & set(sys.modules)
print(sorted(heavy), len(simgpt.search('tiny-1m', 'frontier', 8, batch=16, workers=2)))
"""


@pytest.mark.slow
def test_a_script_needs_no_guard_around_a_search_on_several_processes(tmp_path: Path) -> None:
    """And `import simgpt` imports nothing heavy."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    words = [sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout, done.stderr) == ("[] 3\n", "")


@pytest.mark.slow
def test_a_prediction_says_which_files_it_wrote(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    found = api.predict("tiny-30k", "1x2xH100", "dp=2", batch=4, trace=trace)
    assert found.paths == (trace,)
    assert trace.exists()
    assert found.notes == ()
    page = tmp_path / "page.html"
    written = api.report(found, output=page)
    assert written.paths == (page,)
    assert written.to_dict() == {"paths": [str(page)]}
    assert "tiny-30k" in page.read_text(encoding="utf-8")
