"""Results in Python: their short forms, rows, frames, tables for notebooks, and figures."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import simgpt as api
from simgpt.api.asking import Asked
from simgpt.api.facts import Model
from simgpt.api.predictions import MOST_BARS, Prediction, Sweep
from simgpt.api.result import SHOWN, Result
from tests.simgpt.face import assert_golden, simgpt

PLAN = "x=2,z=2,data=2,micro_batch=2"
STEP = api.predict("tiny-1m", "frontier", PLAN, batch=16)
SWEPT = api.predict("tiny-1m", "frontier", "x=2,data=rest", batch=16, sweep={"z": [1, 2, 64]},
                    devices=16)  # fmt: skip
LADDER = api.predict("tiny-1m", "frontier", batch=64, sweep={"devices": [8, 16]})
FOUND = api.search("tiny-1m", "frontier", 8, batch=16, plan="pipe=1", workers=1)
WHY = api.why("tiny-1m", "frontier", PLAN, batch=16)
MACHINE = api.machine("perlmutter")
MACHINES = api.machine()
COMPARED = api.validate("seeds", only="ornl-1")
RESULTS = {
    "prediction": STEP,
    "sweep": SWEPT,
    "search": FOUND,
    "why": WHY,
    "machine": MACHINE,
    "machines": MACHINES,
    "model": api.model("gpt-5b"),
    "validation": COMPARED,
}


def test_results_are_short_in_a_console_and_tables_in_a_notebook() -> None:
    whole = [result for result in RESULTS.values() if result not in (MACHINE, MACHINES)]
    parts = [f"{result!r}\n{_lines(result._repr_html_())}" for result in whole]
    parts += [f"{MACHINE!r}\n{MACHINES!r}\n"]
    assert_golden("python_results.txt", "\n".join(parts))


def _lines(html: str) -> str:
    return html.replace("<tr>", "\n<tr>").replace("</table>", "\n</table>") + "\n"


def test_the_text_of_a_result_is_what_the_command_prints() -> None:
    said = simgpt("predict", "tiny-1m", "-m", "frontier", "--plan", PLAN, "--batch", "16")
    assert f"{str(STEP).rstrip()}\n" == said.out


def test_a_prediction_has_the_figures_of_its_json() -> None:
    record = STEP.to_dict()
    assert STEP.step_s == record["step_s"] == pytest.approx(sum(STEP.breakdown_s.values()))
    assert STEP.range_s == (record["low_step_s"], record["high_step_s"])
    assert STEP.tokens_per_s == 16 * record["tokens_per_s"] / 16 == record["tokens_per_s"]
    assert (STEP.mfu, STEP.hfu, STEP.fits) == (record["mfu"], record["hfu"], True)
    assert STEP.memory["peak_bytes"] <= STEP.memory["capacity_bytes"]
    assert (STEP.model, STEP.machine, STEP.devices) == ("tiny-1m", "frontier", 8)


def test_what_a_caller_does_to_a_record_does_not_change_the_result() -> None:
    record = STEP.to_dict()
    record["memory"]["peak_bytes"] = record["breakdown_s"]["compute"] = 0
    STEP.memory.clear()
    STEP.breakdown_s.clear()
    assert STEP.memory["peak_bytes"] > 0 and STEP.breakdown_s["compute"] > 0


def test_html_shows_names_as_they_are_whatever_they_contain() -> None:
    evil = "<img src=x onerror=alert(1)>"
    record = STEP.to_dict() | {"model": evil, "machine": evil, "plan_string": evil}
    record["breakdown_s"] = {evil: record["step_s"]}
    asked = Asked((), (), "", record, (evil,), (), 0)
    for html in (Prediction(asked)._repr_html_(), Model(_named(evil))._repr_html_()):
        assert "<img" not in html and "&lt;img" in html
        assert set(re.findall(r"</?(\w+)", html)) <= {"p", "b", "table", "thead", "tbody", "tr",
                                                      "td", "th"}  # fmt: skip


def _named(name: str) -> Asked:
    return Asked((), (), "", {"name": name, name: 1, "parameters": 1}, (), (), 0)


def test_a_frame_has_a_row_for_each_point_and_a_column_for_each_value() -> None:
    pytest.importorskip("pandas")
    frame = SWEPT.to_frame()
    assert list(frame["plan.z"]) == [1, 2, 64]
    assert list(frame["status"]) == ["ok", "ok", "infeasible"]
    assert frame["step_s"][0] == SWEPT.rows()[0]["step_s"] > 0 and frame["step_s"].isna()[2]
    assert list(FOUND.to_frame()["step_s"]) == [plan.step_s for plan in FOUND]
    assert STEP.to_frame()["memory.peak_bytes"][0] == STEP.memory["peak_bytes"]
    assert set(MACHINE.to_frame()) == {"key", "value", "confidence", "source"}
    assert len(COMPARED.to_frame()) == 2 and COMPARED.mape == COMPARED.to_dict()["mape"]


def test_without_pandas_a_frame_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(api.SimgptError, match="needs pandas, which is not installed: pip install"):
        STEP.to_frame()


def test_a_search_has_its_plans_best_first_each_with_its_own_command() -> None:
    best = FOUND.best
    assert best is not None and best.step_s == min(plan.step_s for plan in FOUND)
    assert (len(FOUND), FOUND.optimal, FOUND.gap) == (3, True, 0.0)
    assert FOUND.certificate.endswith(
        "in simgpt's model no other plan is better than these, among the plans that it knows"
    )
    again = simgpt(*best.command.split()[1:], "--json")
    assert f'"step_s": {best.step_s}' in again.out


def test_the_parts_of_a_why_are_rows() -> None:
    assert {"change", "step_s", "saving", "plan_string"} <= set(WHY.rows()[0])
    assert "elasticity" in WHY.rows("sensitivity")[0]
    assert sum(row["share"] for row in WHY.rows("path")) == pytest.approx(1)
    assert WHY.sentence.startswith("The critical path spends")


def test_many_rows_are_cut_and_counted_in_a_notebook() -> None:
    rows = api.predict("tiny-1m", "frontier", devices=1, sweep={"batch": range(1, SHOWN + 5)})
    shown = rows._repr_html_()
    assert f"{4} more rows" in shown and shown.count("<tr>") == SHOWN + 2


FIGURES: dict[str, tuple[Callable[[], Figure], list[str]]] = {
    "prediction": (STEP.plot, ["compute", "waiting on z"]),
    "sweep": (SWEPT.plot, ["z=1", "z=2"]),
    "ladder": (LADDER.plot, ["devices"]),
    "search": (FOUND.plot, ["compute"]),
    "why": (WHY.plot, ["software.all_gather.launch"]),
    "machine": (MACHINE.plot, ["NIC 0"]),
    "validation": (COMPARED.plot, ["measured step, s"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_plots_are_figures_of_matplotlib(name: str, tmp_path: Path) -> None:
    from matplotlib.text import Text

    plot, words = FIGURES[name]
    figure = plot()
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "figure.png")
    texts = [each.get_text() for each in figure.findobj(Text)]
    assert [word for word in words if not any(word in text for text in texts)] == []


def test_nothing_to_draw_is_said() -> None:
    none = api.predict("tiny-1m", "frontier", "x=3,data=2", batch=16, sweep={"z": [3]})
    assert none.status == 3 and isinstance(none, Sweep)
    with pytest.raises(api.SimgptError, match="no plan can run, so there is nothing to draw"):
        none.plot()
    with pytest.raises(api.SimgptError, match="no measured steps to draw"):
        api.validate("groups").plot()


def test_a_figure_has_so_many_bars_at_most() -> None:
    many = api.predict(
        "tiny-1m", "frontier", devices=1, sweep={"batch": range(8, 8 + 2 * MOST_BARS)}
    )
    axes = many.plot().axes[0]
    assert len(axes.get_yticks()) == MOST_BARS


def test_every_kind_of_result_says_what_it_is() -> None:
    kinds = {type(result) for result in RESULTS.values()}
    assert all(kind.__doc__ and issubclass(kind, Result) for kind in kinds)
