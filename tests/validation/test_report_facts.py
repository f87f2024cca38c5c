"""The figures under an answer: each from its own key, per device, and in its unit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.economics import NO_POWER
from simulator.uncertainty.fitting import DOES_NOT_FIT, VERDICTS
from tests.messages import assert_names
from tests.validation.test_headline import RATE, RECORD, made
from validation.overlay import PublishedStep
from validation.report.answer_files import ReportError
from validation.report.answers import Pair
from validation.report.facts import facts_of, table_of
from validation.report.sections import _published, measured

HOUR_S, DAY_S, MWH_J = 3600.0, 86_400.0, 3.6e9
RUN = {"tokens": 3e11, "steps": 1000, "time_s": 30 * DAY_S, "node_s": 2000 * HOUR_S}
OF_DEVICES = " (devices only)"


def test_every_figure_stands_beside_its_own_name() -> None:
    """Two seconds at 500 tokens/s, 3 TFLOP/s on each of 32 devices."""
    found = made(
        step_s=2.0, tokens_per_s=500.0, mfu=0.25, mfu_causal=0.25, hfu=0.5, **{RATE: 3e12},
        memory={"peak_bytes": 3 * 2**30, "capacity_bytes": 4 * 2**30},
        cost={**RECORD["cost"], "node_s_per_step": 2 * HOUR_S, "energy_j_per_step": 1.5e5},
    )  # fmt: skip
    words, values = zip(*facts_of(found, step=True), strict=True)
    assert values == (
        *("2.00 s", "500", "3 TFLOP/s", "25.0 %", "50.0 %", "3.00 GiB", "4.00 GiB: fits"),
        *("1 k", "2.00", "150 kJ"),
    )
    beside = ("step", "tokens", "FLOP/s", "MFU", "HFU", "memory", "memory", "tokens", "node-hours")
    for label, word in zip(words, (*beside, "energy"), strict=True):
        assert_names(label, word)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_verdict_is_that_of_the_answer_whatever_its_bytes(verdict: str) -> None:
    memory = {**RECORD["memory"], "peak_bytes": 2**30, "capacity_bytes": 2**30}
    found = made(memory=memory | {"verdict": verdict})
    assert f"1.00 GiB: {verdict}" in [value for _, value in facts_of(found, step=False)]
    assert found.fits is (verdict != DOES_NOT_FIT)


def test_a_verdict_that_is_none_is_refused() -> None:
    with pytest.raises(ReportError, match="verdict"):
        made(memory={**RECORD["memory"], "verdict": "perhaps"})


@pytest.mark.parametrize(("causal", "said"), [(0.19, ["19.0 %"]), (0.21, []), (None, [])])
def test_the_mfu_of_causal_attention_is_said_where_it_is_a_fifth_lower(
    causal: float | None, said: list[str]
) -> None:
    found = replace(made(mfu=0.25, mfu_causal=causal or 0.25), mfu_causal=causal)
    facts = facts_of(found, step=False)
    assert [value for name, value in facts if name == "MFU, causal attention"] == said


@pytest.mark.parametrize(
    ("own", "run", "said"),
    [
        (7e4, 2 * MWH_J, [(OF_DEVICES, "70.0 kJ"), (OF_DEVICES, "2.0 MWh")]),
        (None, None, [("", NO_POWER), ("", NO_POWER)]),
    ],
)
def test_energy_is_that_of_the_devices_where_the_nodes_is_not_known(
    own: float | None, run: float | None, said: list[tuple[str, str]]
) -> None:
    step = {} if own is None else {"devices_energy_j_per_step": own}
    whole = {} if run is None else {"devices_energy_j": run}
    nodes = {"nodes": 4, "node_s_per_step": 8.0, "energy_j_per_step": None, "power_w": None}
    found = made(cost=nodes | step, training={**RUN, "energy_j": None, **whole})
    facts = facts_of(found, step=False)
    names = ("energy a step", "training on 300 B tokens: energy")
    told = [(key, value) for name in names for key, value in facts if name in key]
    assert told == [(name + more, value) for name, (more, value) in zip(names, said, strict=True)]


def test_training_is_told_of_in_days_node_hours_and_megawatt_hours() -> None:
    found = made(training={**RUN, "energy_j": 4 * MWH_J})
    told = {name.partition(" tokens")[2]: value for name, value in facts_of(found, step=False)}
    assert "30.0 days" in told.values()
    assert told[": steps"] == "1,000"
    assert told[": node-hours"] == "2,000"
    assert told[": energy"] == "4.0 MWh"
    table = table_of([found])
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["days"], row["node-hours"], row["MWh"]) == ("30.0", "2,000", "4.0")


def test_a_mean_absolute_error_counts_errors_of_both_signs() -> None:
    pairs = [Pair("tp", "a", "", 2.0, 3.0), Pair("tp", "b", "", 2.0, 1.0)]
    section = measured(pairs)
    assert section is not None
    (said,) = section.texts
    assert_names(said, "50.0 %", "2")
    assert [row[-1] for row in section.tables[0].rows] == ["+50.0 %", "-50.0 %"]


def test_beside_a_published_step_stands_by_how_much_ours_is_longer() -> None:
    (table,) = _published([(made(step_s=3.0, hfu=0.4), PublishedStep("A", 2.0, 0.6))])
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["step"], row["published step"], row["error"]) == ("3.00 s", "2.00 s", "+50.0 %")
    assert (row["HFU"], row["published HFU"]) == ("40.0 %", "60.0 %")
