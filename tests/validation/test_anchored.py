"""Published rows anchored to each other, on rows whose figures are worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simgpt.tables import percent
from simulator.uncertainty.anchors import SAME_PLAN, Bin
from tests.simgpt.face import simgpt
from tests.simulator.test_anchors import HERE
from tools.anchored_ranges import table_of, table_text
from topologies.files.reading import shipped_text
from validation.published import anchored
from validation.published.anchored import compare_anchored
from validation.published.outcome import PREDICTED, Outcome, held_out
from validation.published.runs import RUNS, PublishedRun, RunsError

BINS = (Bin("dense", 1.0, -0.05, 0.05, 9, 3),)
SEEN = [f"row-{n}" for n in range(60) if not held_out(f"row-{n}")]
UNSEEN = next(f"row-{n}" for n in range(60) if held_out(f"row-{n}"))


def row(name: str, over: float, *, source: str = "a", **change: object) -> Outcome:
    """A row that is predicted to take 10 s, and took so many times as long; the formula says
    5 s."""
    place = HERE._replace(**change)  # type: ignore[arg-type]
    return Outcome(
        PublishedRun({"id": name, "source": source}),
        PREDICTED,
        stack=place.stack,
        measured_s=10 * over,
        predicted_s=10.0,
        low_s=9.0,
        high_s=11.0,
        formula_s=5.0,
        place=place,
    )


def test_a_row_is_anchored_to_the_nearest_different_row_of_its_source() -> None:
    """The second is the first's repetition, and too near; at 128 devices the weight is 4/5."""
    first, same, other, foreign = (
        row(SEEN[0], 1.2),
        row(SEEN[1], 1.3),
        row(SEEN[2], 1.1, devices=128),
        row(SEEN[3], 9.0, source="b", devices=128),
    )
    found = compare_anchored([first, same, other, foreign], BINS)
    rows = {each.outcome.run.id: each for each in found.one}
    assert set(rows) == {SEEN[0], SEEN[1], SEEN[2]}
    assert [each.anchor.name for each in rows[SEEN[0]].used] == [SEEN[2]]
    assert rows[SEEN[0]].anchored_s == pytest.approx(10 * 1.1**0.8)
    assert rows[SEEN[0]].error == pytest.approx(1.1**0.8 / 1.2 - 1)
    # The formula is anchored alike: 5 s times (11 s / 5 s) to the power of 4/5.
    assert rows[SEEN[0]].formula_s == pytest.approx(5 * (11 / 5) ** 0.8)


def test_ranges_hold_as_many_steps_as_lie_within_them() -> None:
    """Of two rows anchored to each other both are off by 1.04/1.2^0.8 or the like; the range goes
    from 0.951 to 1.051."""
    found = compare_anchored([row(SEEN[0], 1.0), row(SEEN[1], 1.04, devices=128)], BINS)
    score = found.score
    assert (score.rows, score.within) == (2, 1.0)
    assert score.half_width == pytest.approx((math.exp(0.05) - math.exp(-0.05)) / 2)
    assert score.blind_half_width == pytest.approx(0.1)
    assert score.blind == pytest.approx((0 + (1 - 1 / 1.04)) / 2)


def test_rows_that_are_held_out_anchor_nothing() -> None:
    found = compare_anchored([row(SEEN[0], 1.2), row(UNSEEN, 1.1, devices=128)], BINS)
    assert [each.outcome.run.id for each in found.one] == [UNSEEN]


@pytest.mark.parametrize(
    "other", [{"stack": "fsdp"}, {"device": "B200"}, {"experts": True}, {"source": "b"}]
)
def test_rows_of_another_stack_device_kind_or_source_anchor_nothing(other: dict[str, Any]) -> None:
    rows = [row(SEEN[0], 1.2), row(SEEN[1], 1.1, devices=128, **other)]
    assert compare_anchored(rows, BINS).one == ()
    assert len(compare_anchored([rows[0], row(SEEN[1], 1.1, devices=128)], BINS).one) == 2


def test_a_row_whose_error_does_not_count_anchors_nothing_and_is_not_anchored() -> None:
    near = row(SEEN[1], 1.1, devices=128)
    assert (
        compare_anchored([row(SEEN[0], 1.2), replace(near, unscored="a bad day")], BINS).one == ()
    )


def test_rows_that_are_held_out_make_no_range() -> None:
    """With the pair of seen rows there is a range, and it is that of the two alone."""
    seen = [row(SEEN[0], 1.0), row(SEEN[1], 1.04, devices=128)]
    assert table_of(seen)
    assert table_of([*seen, row(UNSEEN, 9.0, devices=256)]) == table_of(seen)


def test_the_table_weighs_sources_alike_and_never_narrows_with_distance() -> None:
    """Five pairs of one source are off by 4 %, one pair of another by 20 %: each source has half of
    the weight, so a tenth of it lies below the least of either."""
    rows = [
        row(SEEN[number], 1.04 if number % 2 else 1.0, devices=64 << (number % 2))
        for number in range(10)
    ]
    rows += [
        row(SEEN[10], 1.2, source="b"),
        row(SEEN[11], 1.0, source="b", devices=256),
    ]
    bins = table_of(rows)
    assert [each.doublings for each in bins] == sorted(each.doublings for each in bins)
    assert all(one.low >= other.low and one.high <= other.high for one, other in pairwise(bins))
    assert bins[-1].high >= math.log(1.2)
    assert table_text(bins).splitlines()[0] == "kind,doublings,low,high,pairs,sources"


def test_pairs_with_the_same_plan_have_bins_of_their_own_where_sources_are_enough() -> None:
    """Of three sources the pair of each differs in the devices alone; a fourth's in the plan."""
    rows = []
    for number, source in enumerate("abc"):
        pair = SEEN[2 * number : 2 * number + 2]
        rows += [row(pair[0], 1.0, source=source), row(pair[1], 1.05, source=source, devices=128)]
    tp = (4, 1, 1, 1, 1, 1)
    rows += [row(SEEN[6], 1.0, source="d"), row(SEEN[7], 1.5, source="d", degrees=tp)]
    same = [each for each in table_of(rows) if SAME_PLAN in each.kind]
    assert [(each.doublings, each.pairs, each.sources) for each in same] == [(1.0, 6, 3)]
    assert same[0].high < 0.1
    assert not any(SAME_PLAN in each.kind for each in table_of(rows[2:]))


def anchored_by_the_command(*words: str) -> dict[str, Any]:
    """What the command says of a table, whose rows are each of a source and off by their error."""
    said = simgpt("validate", "anchored", *words, "--json")
    assert said.status == 0
    found: dict[str, Any] = json.loads(said.out)
    assert {row["source"] for row in found["rows"]} == set(found["by_source"])
    for each in found["rows"]:
        assert each["doublings"] >= 1
        error = each["anchored_step_s"] / each["measured_step_s"] - 1
        assert each["anchored_error"] == pytest.approx(error)
    return found


def test_rows_of_a_file_are_anchored_by_the_command(tmp_path: Path) -> None:
    """Two of one source, on 32 and on 128 devices, and one that was not chosen."""
    head, *lines = shipped_text("validation", f"data/{RUNS}").splitlines()
    file, ids = tmp_path / "runs.csv", ("sc21-001", "sc21-003")
    own = (line for line in lines if line.startswith((*ids, "sc21-004")))
    file.write_text("\n".join([head, *own]), encoding="utf-8")
    chosen = [word for name in ids for word in ("--source", name)]
    found = anchored_by_the_command("--data", str(file), *chosen)
    anchors = {row["id"]: row["anchors"] for row in found["rows"]}
    assert anchors == {ids[0]: [ids[1]], ids[1]: [ids[0]]}


def test_each_column_of_the_commands_tables_has_its_measure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four rows of one source that take 10, 12, 15 and 20 s, further apart by a doubling each."""
    rows = [row(SEEN[n], over, devices=64 * 2**n) for n, over in enumerate((1.0, 1.2, 1.5, 2.0))]
    monkeypatch.setattr(anchored, "outcomes_of_both", lambda *_: rows)
    monkeypatch.setattr("simulator.uncertainty.anchors.anchored_bins", lambda: BINS)
    said = simgpt("validate", "anchored")
    score = compare_anchored(rows, BINS).by_source["a"]
    assert score.blind == pytest.approx((0 + 1 / 6 + 1 / 3 + 1 / 2) / 4)
    measures = {
        **{"blind": score.blind, "one": score.one, "three": score.several},
        **{"formula": score.formula, "within": score.within},
        **{"range": score.half_width, "blind range": score.blind_half_width},
    }
    cells = ["4", *(percent(each or 0.0) for each in measures.values())]
    assert len(set(cells)) == len(cells)
    lines = [line.split() for line in said.out.splitlines()]
    assert " ".join(("source", "rows", *measures)).split() in lines
    assert " ".join(("a", *cells)).split() in lines


@pytest.mark.slow
def test_shipped_rows_of_a_source_are_anchored_by_the_command() -> None:
    assert len(anchored_by_the_command("--source", "Narayanan")["rows"]) > 5


def test_rows_are_of_both_tables_and_of_one_where_the_other_has_no_such_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row that stands in both is the first table's; a source of neither is refused."""
    mine, also, theirs = row(SEEN[0], 1.0), row(SEEN[0], 2.0), row(SEEN[1], 1.0)
    tables = {"validate_published": {"a": [mine]}, "validate_moe": {"a": [also, theirs]}}
    tables["validate_moe"]["b"] = [theirs]
    for name, rows in tables.items():

        def validate(_: None, sources: list[str], *__: object, rows: Any = rows) -> Any:
            if sources[0] not in rows:
                raise RunsError(sources[0])
            return SimpleNamespace(outcomes=rows[sources[0]])

        monkeypatch.setattr(anchored, name, validate)
    assert anchored.outcomes_of_both(None, ["a"]) == [mine, theirs]
    assert anchored.outcomes_of_both(None, ["b"]) == [theirs]
    with pytest.raises(RunsError):
        anchored.outcomes_of_both(None, ["c"])
