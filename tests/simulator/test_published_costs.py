"""Matmuls interpolated in published tables: exact where measured, the model's where nothing is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from simulator.costs.analytic import AnalyticCosts, matmul_s, peak_flops_per_s
from simulator.costs.kernels import Kernels
from simulator.costs.published import MatmulTable, PublishedCosts, half_matmul
from tests.messages import names
from tests.simgpt.face import simgpt
from topologies.errors import MachineError
from topologies.hardware.measured_matmuls import matmuls_of
from topologies.machine_files import load_machine

A100 = load_machine("dgx-a100")
SHAPE = (4096, 8192, 2048)


def modelled_s(m: int, n: int, k: int) -> float:
    return matmul_s(A100.device, peak_flops_per_s(A100, "bf16"), half_matmul(m, n, k))


def test_a_measured_shape_takes_as_long_as_was_measured() -> None:
    slow = {SHAPE: 1.25 * modelled_s(*SHAPE), (64, 64, 64): modelled_s(64, 64, 64)}
    found = MatmulTable(A100, slow).correction(*SHAPE)
    assert found.factor == pytest.approx(1.25, rel=1e-5)


def test_between_two_measured_shapes_the_logarithms_of_their_corrections_are_averaged() -> None:
    m, n, k = SHAPE
    halves = {(m // 2, n, k): 0.8, (m * 2, n, k): 1.25}  # the middle is as far from either
    table = {shape: factor * modelled_s(*shape) for shape, factor in halves.items()}
    found = MatmulTable(A100, table).correction(*SHAPE)
    assert found.factor == pytest.approx(1.0)
    assert found.error == pytest.approx(0.2231, abs=1e-4)  # ln 1.25, what they differ by


def test_more_than_a_doubling_from_all_measured_shapes_the_model_stands() -> None:
    m, n, k = SHAPE
    table = MatmulTable(A100, {SHAPE: 2 * modelled_s(*SHAPE)})
    assert table.correction(m * 2.01, n, k).factor == 1.0
    assert table.correction(m * 2.01, n, k).error is None


@pytest.mark.parametrize("name", ["dgx-a100", "perlmutter", "dgx-h100", "alps"])
def test_machines_with_a_table_multiply_matrices_as_measured_and_all_else_as_modelled(
    name: str,
) -> None:
    machine = load_machine(name)
    tabled, model = PublishedCosts(machine), AnalyticCosts(machine)
    published = matmuls_of(machine.device.name)
    assert published is not None
    at = max(published.seconds, key=lambda shape: shape[0] * shape[1] * shape[2])
    op = replace(half_matmul(*at), dtype="bf16")
    burst = 1 / machine.device.matmul.sustained  # a table's short runs know no lower clock
    assert tabled.seconds(op) == pytest.approx(published.seconds[at] * burst, rel=0.02)
    add = replace(op, kind="add", flops=0)
    assert tabled.seconds(add) == model.seconds(add)


def test_a_table_of_16_bits_says_nothing_of_fp32_nor_of_linears_in_fp8() -> None:
    """Where a bf16 matmul is put right, and so is the classifier though layers are in fp8."""
    machine = load_machine("dgx-h100")
    published = matmuls_of(machine.device.name)
    assert published is not None
    m, n, k = max(published.seconds, key=lambda shape: shape[0] * shape[1] * shape[2])
    op = replace(half_matmul(m, n, k), name="m0.l3.up.matmul", dtype="bf16")
    classifier, single = replace(op, name="m0.head.matmul"), replace(op, dtype="fp32")
    fp8 = replace(op, dtype="fp8")
    tabled, model = PublishedCosts(machine, 1), AnalyticCosts(machine, 1)
    for each, is_put_right in {op: True, classifier: True, single: False, fp8: False}.items():
        assert (tabled.seconds(each) != model.seconds(each)) == is_put_right


def test_a_device_without_a_table_is_refused() -> None:
    with pytest.raises(MachineError, check=names("frontier", "A100", "H100", "GH200")):
        PublishedCosts(load_machine("frontier"), 1, Kernels(tabled=True))


def test_predict_takes_matmuls_from_the_table() -> None:
    words = "predict gpt-5b -m perlmutter -n 64 --plan z=4,dp=rest,recompute=full --batch 64"
    plain, tabled = (
        json.loads(simgpt(*words.split(), "--json", "--compute", how).out)["step_s"]
        for how in ("machine", "profile")
    )
    assert plain != tabled
    assert tabled == pytest.approx(plain, rel=0.1)
