"""The choice of matmul forms: made where the machine's costs say so, and what it saves."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from simulator.costs.analytic import AnalyticCosts
from simulator.costs.calibrated import CalibratedCosts
from simulator.costs.matmul_tuning import fastest_forms, is_tuned
from simulator.engine.simulate import simulate_timeline
from simulator.engine.ticks import to_seconds
from simulator.engine.whole_step import simulate_step
from simulator.pipeline import simulate_pipeline
from simulator.predict import forms_on, predict
from tests.forms import swapped
from tests.messages import names
from tests.simulator.worlds import SmallCosts, SmallFabric, plan_of
from topologies.errors import MachineError
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.machine_files import load_machine, with_settings
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.passes.matmul_forms import with_forms
from workload.plan import Plan
from workload.plan_text import parse_plan

SMALL = GPT.of(name="small", layers=18, hidden=48, heads=12, ffn=96, sequence=16, vocab=64)
PLAN = "tp=2,z=4,dp=2,matmul_forms=tuned"
SLOW_NT = {"device.matmul.forms.NT": "0.1"}


def test_without_measurements_by_form_nothing_is_transposed() -> None:
    gpt, plan = find_model("gpt-5b"), parse_plan(PLAN)
    tuned = predict(gpt, plan, load_machine("frontier"))
    assert tuned.tuning is not None
    assert (tuned.tuning.transposed, tuned.tuning.compute_s) == ([], 0)
    plain = predict(gpt, plan.changed(matmul_forms="plain"), load_machine("frontier"))
    assert plain.tuning is None
    assert tuned.step_s == plain.step_s


def test_the_forms_of_a_model_are_those_of_all_its_kinds_of_layers() -> None:
    """Widths of the linears of Mamba-2, attention, MLPs and the classifier, whose tied table is
    transposed in its forward pass, of 96 rows."""
    sizes: dict[str, Any] = {"ssm_heads": 4, "ssm_width": 8, "ssm_state": 4}
    gpt = SMALL.changed(layers=3, pattern="M*-", biases=False, **sizes)
    plan = parse_plan("dp=1,mbs=6,matmul_forms=tuned", batch=6)
    chosen = forms_on(gpt, plan, load_machine("perlmutter"))
    forward = {(n, k) for form, m, n, k, _ in chosen if (form, m) == ("NN", 96)}
    of_mamba, attention = {(2 * 32 + 2 * 4 + 4, 48), (48, 32)}, {(144, 48), (48, 48)}
    assert forward == of_mamba | attention | {(96, 48), (48, 96), (48, 64)}


def test_a_slow_form_is_given_up_for_one_with_a_single_transpose() -> None:
    """Of X W^T as NN the weight is transposed, as TN both would be."""
    machine = with_settings("frontier", SLOW_NT)
    chosen = forms_on(find_model("gpt-5b"), parse_plan(PLAN), machine)
    assert {form for matmul, form in chosen.items() if matmul[0] == "NT"} == {"NN"}
    assert all(matmul[0] == form for matmul, form in chosen.items() if matmul[0] != "NT")


def test_the_time_saved_is_the_slow_matmuls_less_the_transposes() -> None:
    """Where collectives take nothing from compute beside them; else less of it is beside them."""
    gpt, plan = find_model("gpt-5b"), parse_plan(PLAN)
    machine = with_settings("frontier", {**SLOW_NT, "software.compute_share": 0})
    costs = AnalyticCosts(machine, plan.grid.ranks)
    prediction = predict(gpt, plan, machine)
    tuned = lower(gpt, plan, forms=forms_on(gpt, plan, machine)).ops
    kinds = ("matmul", "transpose")
    before, after = (
        sum(costs.seconds(op) for op in ops if op.kind in kinds)
        for ops in (lower(gpt, plan).ops, tuned)
    )
    assert prediction.tuning is not None
    assert prediction.tuning.compute_s == pytest.approx(before - after, rel=1e-4)
    assert prediction.tuning.step_s > 0.9 * prediction.tuning.compute_s


def test_the_step_saves_less_than_its_compute_where_less_of_it_hides_collectives() -> None:
    machine = with_settings("frontier", SLOW_NT)
    gpt, plan = find_model("gpt-5b"), parse_plan(PLAN)
    tuned, plain = (
        predict(gpt, plan.changed(matmul_forms=forms), machine) for forms in ("tuned", "plain")
    )
    assert tuned.tuning is not None
    saved = plain.breakdown_s["compute"] - tuned.breakdown_s["compute"]
    assert tuned.tuning.compute_s == pytest.approx(saved)
    assert tuned.tuning.step_s == pytest.approx(plain.step_s - tuned.step_s)
    assert tuned.tuning.step_s < 0.98 * tuned.tuning.compute_s


def test_a_transpose_that_costs_more_than_the_slow_form_is_not_made() -> None:
    machine = with_settings("frontier", {**SLOW_NT, "device.memory_efficiency": "1e-4"})
    chosen = forms_on(find_model("gpt-5b"), parse_plan(PLAN), machine)
    assert all(matmul[0] == form for matmul, form in chosen.items())


def test_a_profile_of_all_forms_makes_the_choice() -> None:
    """TN takes 1 s, other forms 0.2 s and a transpose 0.1 s."""
    rows = [
        (1.0, code, *side, seconds)
        for code, seconds in ((0.0, 0.2), (1.0, 0.2), (2.0, 1.0))
        for side in product((8.0, 8192.0), repeat=3)
    ]
    columns = ("ranks", "form", "m", "n", "k", "seconds")
    moves = ((1.0, 1.0, 0.1), (1.0, 1e12, 0.1))
    kernels = {
        "matmul@bf16": MeasuredTable(columns, tuple(rows)),
        "transpose@bf16": MeasuredTable(("ranks", "nbytes", "seconds"), moves),
    }
    costs = CalibratedCosts(Profile(kernels=kernels), ranks=1, host_bytes_per_s=1e9)
    chosen = fastest_forms(SMALL, plan_of(PLAN), costs)
    assert {form for matmul, form in chosen.items() if matmul[0] == "TN"} == {"NN"}
    assert all(matmul[0] == form for matmul, form in chosen.items() if matmul[0] != "TN")


def test_a_profile_without_transposes_is_refused_by_the_missing_table() -> None:
    sides = product((8.0, 8192.0), repeat=3)
    columns = ("ranks", "form", "m", "n", "k", "seconds")
    table = MeasuredTable(columns, tuple((1.0, 0.0, *side, 0.2) for side in sides))
    costs = CalibratedCosts(Profile(kernels={"matmul@bf16": table}), ranks=1, host_bytes_per_s=1e9)
    with pytest.raises(MachineError, check=names("transpose@bf16")):
        fastest_forms(SMALL, plan_of(PLAN), costs)


@pytest.mark.parametrize("overlap", [pytest.param("none", marks=pytest.mark.slow), "all"])
def test_a_folded_step_with_transposes_equals_the_whole_step(overlap: str) -> None:
    plan = plan_of(f"tp=2,z=2,matmul_forms=tuned,recompute=full,overlap={overlap}", 9)
    forms = swapped(SMALL, plan, {"TN": "NN", "NT": "NN"})
    folded, whole = (
        simulate_step(
            SMALL, plan, SmallCosts(), SmallFabric(bytes_per_s=1e9), fold=fold, forms=forms
        )
        for fold in (True, False)
    )
    assert folded.micro_batches < whole.micro_batches
    assert replace(folded, micro_batches=whole.micro_batches) == whole
    assert folded.ops == len(lower(SMALL, plan, forms=forms).ops)


@pytest.mark.parametrize("schedule", [pytest.param("1f1b", marks=pytest.mark.slow), "zb-h1"])
def test_a_pipeline_with_transposes_equals_its_ops(schedule: str) -> None:
    plan = plan_of(f"pp=2,z=2,schedule={schedule},matmul_forms=tuned", 10)
    forms = swapped(SMALL, plan, {"TN": "NN", "NT": "NN"})
    fabric = SmallFabric(axes_share=False)
    tuned, plain = (
        simulate_pipeline(SMALL, plan, SmallCosts(), fabric, forms=chosen) for chosen in (forms, {})
    )
    programs = [lower(SMALL, plan, stage, forms=forms) for stage in range(plan.pp)]
    spans = simulate_timeline(programs, SmallCosts(), fabric).spans
    lasts = to_seconds(sum(tuned.parts_ticks.values()))
    assert lasts == pytest.approx(max(span.end_s for span in spans), rel=1e-12, abs=0)
    assert tuned.memory.total_bytes == max(program.peak.total_bytes for program in programs)
    assert tuned.ops in [len(program.ops) for program in programs]
    assert tuned.parts_ticks["compute"] > plain.parts_ticks["compute"]


def test_stages_and_interleaving_do_not_change_the_choice() -> None:
    machine = with_settings("frontier", SLOW_NT)
    gpt = find_model("gpt-5b")
    texts = ("dp=2", "dp=2,pp=4,vpp=2", "dp=2,pp=6,schedule=zb-h1")
    plans = [parse_plan(f"z=4,{text},mbs=2,matmul_forms=tuned", batch=64) for text in texts]
    first, *others = (forms_on(gpt, plan, machine) for plan in plans)
    assert all(other == first for other in others)


def test_a_slow_form_of_large_matmuls_is_tuned_away_on_frontiers_software_of_2024() -> None:
    """AxoNN's 320B on the grid that its row takes: it printed 30.1 s for a batch's compute before
    tuning, and 13.2 s after. Neither figure chose a constant."""
    gpt = GPT.of(
        name="320b", layers=96, hidden=16384, heads=128, ffn=65536, sequence=2048, vocab=50304
    )
    plan = Plan.of(batch=8192, tp=4, z=64, dp=128, mbs=1, recompute="full")
    program = lower(gpt, plan)
    early, later = (
        AnalyticCosts(load_machine(name), 32768) for name in ("frontier:rocm-5", "frontier")
    )
    found = fastest_forms(gpt, plan, early)
    assert is_tuned(found)
    assert not is_tuned(fastest_forms(gpt, plan, later))
    ops, _ = with_forms(program.ops, program.buffers, found)
    plain_s, tuned_s = (
        sum(early.seconds(op) for op in each if not op.communicates and op.kind != "fence")
        for each in (program.ops, ops)
    )
    assert plain_s == pytest.approx(30.1, rel=0.1)
    assert tuned_s == pytest.approx(13.2, rel=0.1)
    small = gpt.changed(hidden=12288, ffn=49152, heads=96)
    assert not is_tuned(fastest_forms(small, plan, early))
