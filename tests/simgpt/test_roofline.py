"""`simgpt why --roofline`: its table compared whole, its JSON, the file, and Python's figure."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import simgpt as api
from simgpt import roofline_text, tables
from simgpt.api.asking import Answered
from simgpt.api.errors import NothingToDrawError
from simgpt.api.reasons import Why
from tests.messages import assert_names, names
from tests.simgpt.face import assert_golden, simgpt
from tests.simulator.test_roofline import of_step
from validation.report.figures.roofline import groups_of, roofline
from validation.report.figures.style import drawing

pytestmark = pytest.mark.usefixtures("few_numbers")
PLAN = "tp=2,pp=2,dp=2,recompute=full,mbs=1"
WHY = ("why", "tiny-30k", "-m", "frontier", "--plan", "dp=2", "--batch", "2")


def section(out: str) -> str:
    """The paragraph of an answer that has the roofline."""
    return next(part for part in out.split("\n\n") if part.startswith("roofline"))


def test_the_table_reads_as_its_golden_file() -> None:
    """Of a model whose matmuls are long enough to reach a good part of the peak."""
    _, found = of_step(PLAN, model="megatron-1.7b")
    text = roofline_text.describe(found, stages=2)
    assert max(map(len, text.splitlines())) <= tables.WIDTH
    assert_golden("why-roofline.txt", f"{text}\n")


def test_the_command_prints_the_table_and_draws_the_figure(tmp_path: Path) -> None:
    path = tmp_path / "roof.svg"
    said = simgpt(*WHY, "--roofline", str(path))
    assert said.status == 0
    assert said.err == f"wrote {path}\n"
    assert path.read_bytes().startswith(b"<?xml")
    kinds = [line.rpartition("   ")[0].split("   ")[0] for line in section(said.out).splitlines()]
    assert {"down.matmul", "norms", "optimizer", "whole step"} <= set(kinds)


@pytest.mark.slow
def test_the_suffix_says_how_a_figure_is_written(tmp_path: Path) -> None:
    """As a PDF; an SVG and a PNG are drawn below, by the command and from Python."""
    prediction, found = of_step("dp=2", model="tiny-30k")
    record = {**prediction.as_dict(), "why": {"roofline": found.as_dict()}}
    roofline_text.draw(record, tmp_path / "roof.pdf")
    assert (tmp_path / "roof.pdf").read_bytes().startswith(b"%PDF")


def test_the_json_has_the_numbers_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline_text, "draw", lambda *_: None)
    said = simgpt(*WHY, "--roofline", str(tmp_path / "roof.svg"), "--json")
    record = json.loads(said.out)
    found = record["why"]["roofline"]
    assert sum(kind["share"] for kind in found["kinds"]) == pytest.approx(1)
    parts = record["breakdown_s"]
    seconds = sum(kind["seconds"] for kind in found["kinds"])
    assert seconds == pytest.approx(parts["compute"] + parts["optimizer"])
    step = found["step"]
    assert step["seconds"] == record["step_s"]
    assert step["flops_per_s"] == pytest.approx(step["flops"] / record["step_s"])
    assert found["roofs"]["peak_flops_per_s"] == {"bf16": 191.5e12}
    assert found["roofs"]["best_matmul_flops_per_s"] == 147e12


def test_python_has_the_rows_and_the_figure(tmp_path: Path) -> None:
    from matplotlib.text import Text

    with_one = api.why("tiny-30k", "frontier", "dp=2", batch=2, roofline=tmp_path / "roof.png")
    assert with_one.paths == (tmp_path / "roof.png",)
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")
    rows = with_one.rows("roofline")
    assert rows[-1]["kind"] == "whole step"
    figure = with_one.plot("roofline")
    texts = "\n".join(text.get_text() for text in figure.findobj(Text))
    named = [row["kind"] for row in rows if row["flop_per_byte"]]
    assert [kind for kind in named if kind not in texts] == []
    record = with_one.to_dict()
    del record["why"]["roofline"]
    without = Why(Answered((), "", record, (), (), 0))
    for ask in (without.plot, without.rows):
        with pytest.raises(NothingToDrawError, check=names("roofline=")):
            ask("roofline")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--roofline roof.jpeg", "--roofline roof.jpeg .png .svg .pdf"),
        ("--roofline nowhere/roof.png", "--roofline nowhere/roof.png"),
        ("--roofline roof.svg -o roof.svg", "-o --roofline roof.svg"),
    ],
)
def test_a_file_that_cannot_be_drawn_is_refused_first(
    words: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = simgpt(*WHY, *words.split())
    assert said.status == 2
    assert_names(said.sentence, *named.split())
    assert list(tmp_path.iterdir()) == []


def dot(kind: str, intensity: float, rate: float, share: float = 0.1) -> dict[str, object]:
    work = "step" if kind == "whole step" else "matmuls"
    return {"kind": kind, "work": work, "flop_per_byte": intensity, "flops_per_s": rate,
            "share": share}  # fmt: skip


def test_dots_that_lie_on_one_another_are_named_together() -> None:
    dots = [
        dot("a", 100.0, 1.00e14), dot("b", 105.0, 1.01e14),
        dot("c", 120.0, 1.00e14), dot("d", 100.0, 0.90e14), dot("whole step", 100.0, 1.00e14),
    ]  # fmt: skip
    together = [[str(each["kind"]) for each in own] for own in groups_of(dots)]
    assert together == [["b", "a"], ["c"], ["whole step"], ["d"]]


@pytest.mark.slow
def test_names_stand_inside_the_figure_and_apart() -> None:
    """Also where no two dots share a name, and one peak is far above the other."""
    from matplotlib.text import Text

    kinds = [dot(f"kind.{n}.grad.weight", 300.0 * 1.3**n, 2e14 + 5e13 * n) for n in range(16)]
    roofs = {
        "memory_bytes_per_s": 3.35e12, "reached_bytes_per_s": 2.9e12,
        "peak_flops_per_s": {"bf16": 989e12, "fp8": 1979e12}, "best_matmul_flops_per_s": 794e12,
    }  # fmt: skip
    found = {"roofs": roofs, "kinds": kinds, "step": dot("whole step", 900.0, 3e14)}
    record = {"model": "m", "machine": "n", "devices": 8, "why": {"roofline": found}}
    with drawing():
        figure = roofline(record)
        figure.canvas.draw()
        whole, near = figure.axes
        boxes = [Text.get_window_extent(each) for each in near.texts if "kind" in each.get_text()]
        beside = [text.get_window_extent() for text in (*whole.texts, *near.texts)]
    assert len(boxes) == 16
    assert all(above.y0 >= below.y1 - 1 for above, below in pairwise(boxes))
    ends = [figure.bbox.contains(*corner) for box in beside for corner in (box.min, box.max)]
    assert all(ends)
    left, right = whole.get_tightbbox(), near.get_tightbbox()
    assert left is not None
    assert right is not None
    assert left.x1 <= right.x0
