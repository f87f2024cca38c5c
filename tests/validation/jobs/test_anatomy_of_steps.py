"""A step's kernels, split by what hides what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.attribution.critical_path import cause_of
from simulator.predict import predict
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from topologies.machine_files import load_machine
from validation.jobs.anatomy import Communicator, Kernel, anatomy, covered_s, predicted_anatomy
from validation.jobs.kernel_names import kernel_class
from validation.report.figures.step_figures import sort_of
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan_text import parse_plan
from workload.timeline import Span, Timeline

GATHER = Communicator("all_gather", 4)
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple))


def test_a_step_is_compute_and_what_of_communication_it_does_not_hide_and_idle_time() -> None:
    """10 s: compute from 0 to 4, a gather from 3 to 6 (1 s of it hidden), a sum from 6 to 7."""
    kernels = [
        Kernel("matmul", 0.0, 3.0),
        Kernel("attention", 2.0, 4.0),
        Kernel(GATHER, 3.0, 6.0),
        Kernel(Communicator("all_reduce"), 6.0, 7.0),
        Kernel("matmul", 11.0, 12.0),
    ]
    found = anatomy(kernels, 0.0, 10.0)
    assert (found.compute_s, found.overlapped_s, found.exposed_s, found.idle_s) == (4, 1, 3, 3)
    assert found.classes_s == {"matmul": 3, "attention": 2, "elementwise": 0, "optimizer": 0}
    assert found.communicators_s == {GATHER: 3, Communicator("all_reduce"): 1}
    assert found.by_kind()[Communicator("all_gather")] == 3
    assert anatomy(kernels, 0.0, 10.0, steps=2).exposed_s == 1.5


@given(SPANS)
def test_what_spans_cover_is_counted_once(spans: list[tuple[int, int]]) -> None:
    seconds = {second for start, end in spans for second in range(start, end)}
    assert covered_s([(float(a), float(b)) for a, b in spans]) == len(seconds)


@given(SPANS, SPANS)
def test_the_parts_of_a_time_line_sum_to_it(
    compute: list[tuple[int, int]], communication: list[tuple[int, int]]
) -> None:
    kernels = [Kernel("matmul", *each) for each in compute]
    kernels += [Kernel(GATHER, *each) for each in communication]
    found = anatomy(kernels, 5.0, 25.0)
    assert found.compute_s + found.exposed_s + found.idle_s == 20
    assert 0 <= found.overlapped_s <= found.compute_s


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "all_reduce",
        ),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send/recv"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other communication"),
        ("gloo:all_reduce", "all_reduce"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "matmul"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_AS_SAV_UserArgs_MT256x256x32", "matmul"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>>", "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>>", "optimizer"),
        ("aten::_fused_adamw_", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>", "elementwise"),
        ("triton_poi_fused_add_mul_0", "elementwise"),
    ],
)
def test_a_kernels_name_says_what_it_is(name: str, what: str) -> None:
    assert str(kernel_class(name, {})) == what


def test_a_predicted_device_is_idle_while_it_waits_for_its_host() -> None:
    gpt = replace(find_model("qwen3-30b-a3b"), layers=2, vocab=4096)
    job = job_of(gpt, "dp=8,ep=8,mbs=1", load_stack("nemo"), devices=8, batch=8)
    told = predict(job.gpt, job.plan, load_machine("dgx-h100"), stack=job.stack, timeline=True)
    assert told.timeline is not None
    found, parts = predicted_anatomy(told.timeline, job.plan.grid, 0), told.breakdown_s
    # but for sums of gradients that run meanwhile
    assert 0.9 * parts["host"] < found.idle_s < parts["host"]
    assert found.compute_s == pytest.approx(parts["compute"] + parts["optimizer"], rel=1e-6)
    assert found.idle_s > 0.1 * told.step_s


def test_all_products_of_matrices_are_matmuls_wherever_ops_are_told_apart() -> None:
    plan = parse_plan("attention=unfused", batch=1)
    kinds = {op.kind: op for op in lower(find_model("tiny-mixtral-2m"), plan).ops}
    products = {kind: op for kind, op in kinds.items() if kind.endswith("matmul")}
    assert set(products) == {"matmul", "batched_matmul", "grouped_matmul"}
    for op in products.values():
        assert str(cause_of(op)) == "matmuls"
        assert sort_of(op) == "matmul"
        told = Timeline("predicted", (Span(0, op, 0.0, 1.0),))
        assert predicted_anatomy(told, plan.grid, 0).classes_s["matmul"] == 1.0
    assert sort_of(kinds["route"]) == "elementwise"


def test_a_predicted_step_has_the_parts_of_its_prediction() -> None:
    """On one stage all that compute waits for is communication, waiting for other ranks too."""
    plan = parse_plan("tp=2,z=2,dp=2", devices=None, batch=16)
    machine = load_machine("frontier")
    told = predict(find_model("gpt-5b"), plan, machine, timeline=True)
    assert told.timeline is not None
    found = predicted_anatomy(told.timeline, plan.grid, 0)
    busy = told.breakdown_s["compute"] + told.breakdown_s["optimizer"]
    assert found.step_s == pytest.approx(told.step_s)
    assert found.compute_s == pytest.approx(busy, rel=1e-6)
    assert found.exposed_s == pytest.approx(told.step_s - busy, rel=1e-6)
    assert found.idle_s == 0
    assert found.classes_s["optimizer"] == pytest.approx(told.breakdown_s["optimizer"], rel=0.3)
    ranks = {each.kind: each.ranks for each in found.communicators_s}
    assert set(ranks.values()) <= {2, 4, 8}
