"""Results in Python: their short forms, rows, frames, tables for notebooks, and figures."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import simgpt as api
from simgpt.api.asking import Answered
from simgpt.api.facts import Listing, Machine, Model, Validation
from simgpt.api.predictions import MOST_BARS, Prediction, Search, Sweep
from simgpt.api.reasons import Why
from simgpt.api.result import SHOWN, Result
from tests.examples import one_in
from tests.messages import assert_names, names
from tests.simgpt.face import assert_golden, simgpt

PLAN = "tp=2,z=2,dp=2,mbs=2"
Drawn = Prediction | Sweep | Search | Why | Machine | Validation


@cache
def step() -> Prediction:
    return api.predict("tiny-1m", "frontier", PLAN, batch=16)


@cache
def swept() -> Sweep:
    sizes = {"z": [1, 2, 64]}
    return api.predict("tiny-1m", "frontier", "tp=2,dp=rest", batch=16, sweep=sizes, devices=16)


@cache
def ladder() -> Sweep:
    return api.predict("tiny-1m", "frontier", batch=64, sweep={"devices": [8, 16]})


@cache
def found() -> Search:
    plan = "pp=1,recompute=none,zero=0,y=1"
    return api.search("tiny-1m", "frontier", 8, batch=16, plan=plan, workers=1)


@cache
def why() -> Why:
    return api.why("tiny-30k", "frontier", "z=2,dp=2", batch=4)


@cache
def compared() -> Validation:
    return api.validate("seeds", only=["ornl-22b", "ornl-175b"])


@cache
def machine() -> Machine:
    return api.machine("perlmutter")


@cache
def machines() -> Listing:
    return api.machine()


WHOLE: dict[str, Callable[[], Result]] = {
    "prediction": step,
    "sweep": swept,
    "search": found,
    "why": why,
    "model": lambda: api.model("gpt-5b"),
    "validation": compared,
}


def test_results_are_short_in_a_console_and_tables_in_a_notebook() -> None:
    whole = [ask() for ask in WHOLE.values()]
    parts = [f"{result!r}\n{_lines(result._repr_html_())}" for result in whole]
    parts += [f"{machine()!r}\n{machines()!r}\n"]
    assert_golden("python_results.txt", "\n".join(parts))


def _lines(html: str) -> str:
    return html.replace("<tr>", "\n<tr>").replace("</table>", "\n</table>") + "\n"


def test_a_listing_has_a_row_for_each_and_nothing_else() -> None:
    assert {"simgpt", "megatron-core"} < {*api.stack().names}
    assert {"frontier", "perlmutter"} < {*machines().names}
    assert len({*machines().names}) == len(machines().rows())


def test_what_a_why_and_a_sweep_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(api.SimgptError, check=names("speed", "sensitivity")):
        why().rows("speed")  # type: ignore[arg-type]
    with pytest.raises(api.SimgptError, check=names("sweep")):
        api.predict("tiny-1m", "frontier", "dp=8", batch=8, sweep={})


def test_the_text_of_a_result_is_what_the_command_prints() -> None:
    said = simgpt("predict", "tiny-1m", "-m", "frontier", "--plan", PLAN, "--batch", "16")
    assert f"{str(step()).rstrip()}\n" == said.out


def test_a_prediction_has_the_figures_of_its_json() -> None:
    record = step().to_dict()
    assert step().step_s == record["step_s"] == pytest.approx(sum(step().breakdown_s.values()))
    assert step().range_s == (record["low_step_s"], record["high_step_s"])
    assert step().tokens_per_s == 16 * record["tokens_per_s"] / 16 == record["tokens_per_s"]
    assert (step().mfu, step().hfu, step().fits) == (record["mfu"], record["hfu"], True)
    assert step().memory["peak_bytes"] <= step().memory["capacity_bytes"]
    assert (step().model, step().machine, step().devices) == ("tiny-1m", "frontier", 8)


def test_what_a_caller_does_to_a_record_does_not_change_the_result() -> None:
    record = step().to_dict()
    record["memory"]["peak_bytes"] = record["breakdown_s"]["compute"] = 0
    step().memory.clear()
    step().breakdown_s.clear()
    assert step().memory["peak_bytes"] > 0
    assert step().breakdown_s["compute"] > 0


def test_html_shows_names_as_they_are_whatever_they_contain() -> None:
    evil = "<img src=x onerror=alert(1)>"
    record = step().to_dict() | {"model": evil, "machine": evil, "plan_string": evil}
    record["breakdown_s"] = {evil: record["step_s"]}
    asked = Answered((), "", record, (evil,), (), 0)
    for html in (Prediction(asked)._repr_html_(), Model(_named(evil))._repr_html_()):
        assert "<img" not in html
        assert "&lt;img" in html
        assert set(re.findall(r"</?(\w+)", html)) <= {"p", "b", "table", "thead", "tbody", "tr",
                                                      "td", "th"}  # fmt: skip


def _named(name: str) -> Answered:
    return Answered((), "", {"name": name, name: 1, "parameters": 1}, (), (), 0)


def test_a_frame_has_a_row_for_each_point_and_a_column_for_each_value() -> None:
    pytest.importorskip("pandas")
    frame = swept().to_frame()
    assert list(frame["plan.z"]) == [1, 2, 64]
    assert list(frame["status"]) == ["ok", "ok", "infeasible"]
    assert frame["step_s"][0] == swept().rows()[0]["step_s"] > 0
    assert frame["step_s"].isna()[2]
    assert list(found().to_frame()["step_s"]) == [plan.step_s for plan in found()]
    assert step().to_frame()["memory.peak_bytes"][0] == step().memory["peak_bytes"]
    assert set(machine().to_frame()) == {"key", "value", "confidence", "source"}
    assert len(compared().to_frame()) == 2
    assert compared().mape == compared().to_dict()["mape"]


def test_without_pandas_a_frame_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(api.SimgptError, check=names("pandas", "pip install")):
        step().to_frame()


def test_a_search_has_its_plans_best_first_each_with_its_own_command() -> None:
    best = found().best
    assert best is not None
    assert best.step_s == min(plan.step_s for plan in found())
    assert (len(found()), found().optimal, found().gap) == (3, True, 0.0)
    assert found().certificate == found().to_dict()["certificate"]
    again = simgpt(*best.command.split()[1:], "--json")
    assert f'"step_s": {best.step_s}' in again.out


def test_a_ranking_by_messages_alone_does_not_call_its_best_plan_optimal() -> None:
    plan = "pp=1,recompute=none,zero=0,y=1,z=1,mbs=1"
    ranked = api.search("tiny-30k", "frontier", 2, batch=4, plan=plan, rank_by="axonn")
    assert len(ranked) > 1
    assert (ranked.optimal, ranked.gap) == (False, None)


def test_the_parts_of_a_why_are_rows() -> None:
    assert {"change", "step_s", "saving", "plan_string"} <= set(why().rows()[0])
    assert "elasticity" in why().rows("sensitivity")[0]
    assert sum(row["share"] for row in why().rows("path")) == pytest.approx(1)
    largest = max(row["share"] for row in why().rows("path"))
    assert_names(why().sentence, f"{largest:.0%}".replace("%", " %"))


def test_many_rows_are_cut_and_counted_in_a_notebook() -> None:
    rows = api.predict("tiny-1m", "frontier", devices=1, sweep={"batch": range(1, SHOWN + 5)})
    shown = rows._repr_html_()
    assert_names(shown, "4 more")
    assert shown.count("<tr>") == SHOWN + 2


FIGURES: dict[str, tuple[Callable[[], Drawn], list[str]]] = {
    "prediction": (step, ["compute", "waiting on z"]),
    "sweep": (swept, ["z=1", "z=2"]),
    "ladder": (ladder, ["devices"]),
    "search": (found, ["compute"]),
    "why": (why, ["software.all_gather.launch"]),
    "machine": (machine, ["NIC 0"]),
    "validation": (compared, ["measured step, s"]),
}


@pytest.mark.parametrize("name", one_in(2, FIGURES))
def test_plots_are_figures_of_matplotlib(name: str, tmp_path: Path) -> None:
    from matplotlib.text import Text

    ask, words = FIGURES[name]
    figure = ask().plot()
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "figure.png")
    texts = [each.get_text() for each in figure.findobj(Text)]
    assert [word for word in words if not any(word in text for text in texts)] == []


def test_nothing_to_draw_is_said() -> None:
    none = api.predict("tiny-1m", "frontier", "tp=3,dp=2", batch=16, sweep={"z": [3]})
    assert none.status == 3
    assert isinstance(none, Sweep)
    with pytest.raises(api.SimgptError):
        none.plot()
    with pytest.raises(api.SimgptError):
        api.validate("groups").plot()


def test_a_figure_has_so_many_bars_at_most() -> None:
    many = api.predict(
        "tiny-1m", "frontier", devices=1, sweep={"batch": range(8, 8 + 2 * MOST_BARS)}
    )
    axes = many.plot().axes[0]
    assert len(axes.get_yticks()) == MOST_BARS


def test_every_kind_of_result_says_what_it_is() -> None:
    kinds = {type(ask()) for ask in WHOLE.values()} | {type(machine()), type(machines())}
    assert all(kind.__doc__ and issubclass(kind, Result) for kind in kinds)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((name, name) for name in ("model", "machine", "devices", "step_s", "tokens_per_s")),
        *((name, name) for name in ("mfu", "mfu_causal", "hfu", "breakdown_s", "memory")),
        ("plan", "plan_string"),
    ],
)
def test_a_property_of_a_prediction_is_what_its_record_has_under_that_name(
    name: str, key: str
) -> None:
    assert getattr(step(), name) == step().to_dict()[key]
    assert step().mfu_causal < step().mfu < step().tokens_per_s


def test_a_search_has_the_best_plan_of_each_family() -> None:
    search = found()
    best = next(iter(search.families.values()))
    assert search.best is not None
    assert (best.plan, best.step_s) == (search.best.plan, search.best.step_s)
    steps = [each.step_s for each in search.families.values()]
    assert steps == sorted(steps)
