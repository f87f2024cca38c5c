"""Sliding windows against the plain model: same losses, same weights, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.executor.test_parity import check
from tests.executor.test_parity_experts import MIXTRAL, plan_of
from workload.gpt import GPT, find_model

# Of 16 tokens 5 are seen, and in every second layer all; or in no layer more than 6.
OSS = find_model("tiny-llama-40k").changed(vocab=250, layers=4, window=5, global_every=2)
MISTRAL = OSS.changed(layers=2, window=6, global_every=0, dropout=0.1)

ONE = [plan_of(), plan_of(micro_batches=2, recompute="selective", overlap=())]
TWO = [
    plan_of(tp=2, sp=True, recompute="full"),
    plan_of(z=2),
    plan_of(dp=2, zero=1),
    plan_of(pp=2, micro_batches=2),
]
FOUR = [
    plan_of(tp=2, y=2, recompute="selective"),
    plan_of(tp=2, dp=2, zero=3),
    plan_of(z=2, dp=2, micro_batches=2),
    plan_of(tp=2, pp=2, micro_batches=4, schedule="zb-h1"),
    plan_of(pp=2, dp=2, vpp=1, micro_batches=2, recompute="full"),
]


@pytest.mark.distributed
def test_layers_with_windows_between_others_train_as_the_plain_model_does() -> None:
    check(1, replace(OSS, layers=2), ONE[1:])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("gpt", [OSS, MISTRAL], ids=["every second layer", "all layers, dropout"])
def test_windows_under_more_plans_train_as_the_plain_model_does(gpt: GPT) -> None:
    check(1, gpt, ONE)
    check(2, gpt, TWO)
    check(4, gpt, FOUR)


OVER_CONTEXT = [
    plan_of(cp=2, context_kind="all_gather", recompute="selective"),
    plan_of(cp=2, context_kind="ulysses", micro_batches=2),
    plan_of(cp=2, zero=1),
]
RINGS = [
    plan_of(cp=4, recompute="selective", micro_batches=2),
    plan_of(cp=4, context_heads=2, zero=3),
]


@pytest.mark.distributed
def test_windows_over_context_train_as_the_plain_model_does() -> None:
    """Where heads are traded, ranks have whole sequences as one alone has."""
    check(2, replace(OSS, layers=2), OVER_CONTEXT[::2])


@pytest.mark.distributed
@pytest.mark.slow
def test_windows_and_sinks_over_context_train_as_the_plain_model_does() -> None:
    sunk = OSS.changed(sinks=True, kv_heads=0)
    check(2, OSS, OVER_CONTEXT)
    check(2, replace(OSS, layers=2), OVER_CONTEXT)
    check(2, MISTRAL.changed(sinks=True), OVER_CONTEXT)
    wide = [plan_of(cp=4, context_kind=kind, zero=1) for kind in ("all_gather", "ulysses")]
    check(4, sunk, [*wide, plan_of(tp=2, cp=2, context_kind="ulysses", micro_batches=2)])


@pytest.mark.slow
@pytest.mark.distributed
def test_sinks_over_context_train_as_the_plain_model_does() -> None:
    """On a ring, and where heads are traded."""
    sunk = OSS.changed(sinks=True, window=0, global_every=0, layers=1)
    check(2, sunk, OVER_CONTEXT[1:])


@pytest.mark.distributed
@pytest.mark.slow
def test_sinks_over_context_do_so_in_every_kind_of_it() -> None:
    sunk = OSS.changed(sinks=True, window=0, global_every=0, kv_heads=0)
    rings = [plan_of(cp=4, micro_batches=2), plan_of(cp=4, context_heads=2)]
    others = [plan_of(tp=2, cp=2, context_kind=kind) for kind in ("all_gather", "ulysses")]
    check(4, sunk, [*rings, *others])
    trades = plan_of(tp=2, cp=2, context_kind="ulysses")
    check(4, replace(sunk, layers=2), [plan_of(cp=4, context_heads=2), trades])


# Of 16 tokens four documents of 4 each; of 8 with windows of 3, which end within a document.
PACKED = find_model("tiny-llama-40k").changed(vocab=250, document=4)
NARROW = OSS.changed(document=8, window=3, global_every=2)
THREE = [OVER_CONTEXT[1], plan_of(cp=2, context_kind="all_gather"), plan_of(tp=2)]


@pytest.mark.distributed
def test_packed_documents_train_as_the_plain_model_does() -> None:
    """On one rank; those of several lengths over context."""
    check(1, replace(PACKED, layers=1), ONE[:1])


@pytest.mark.distributed
def test_a_ring_that_leaves_out_a_step_trains_as_the_plain_model_does() -> None:
    plain = OSS.changed(kv_heads=0, layers=1, window=2, global_every=0)
    check(4, plain, [plan_of(cp=4)])


@pytest.mark.distributed
@pytest.mark.slow
def test_rings_that_leave_out_steps_train_as_the_plain_model_does() -> None:
    plain = OSS.changed(kv_heads=0, layers=2)
    for gpt in (
        plain.changed(window=2),
        plain.changed(window=2, global_every=0),
        plain.changed(window=6, sinks=True),
        plain.changed(window=0, global_every=0, document=4),
        plain.changed(window=0, global_every=0, document=8, positions="alibi"),
        plain.changed(window=3, document=8),
        MISTRAL.changed(kv_heads=0),
    ):
        check(4, gpt, RINGS)


@pytest.mark.distributed
@pytest.mark.slow
def test_packed_documents_under_more_plans_train_as_the_plain_model_does() -> None:
    check(2, PACKED, THREE)
    check(2, NARROW.changed(sinks=True), THREE)
    check(2, PACKED.changed(positions="alibi", document=8), THREE)
    wide = [plan_of(cp=4, context_kind="all_gather", recompute="full", micro_batches=2)]
    check(4, PACKED.changed(document=8), [*wide, plan_of(tp=2, dp=2, zero=3)])
    latent = PACKED.changed(kv_heads=0, head_width=4, kv_rank=10, rope_width=2, value_width=8)
    check(2, latent, THREE)


# Of 16 tokens documents of 7, 1, 5 and 3: chunks of 2 and 4 tokens are cut by their ends.
LENGTHS = PACKED.changed(document=0, documents="7+1+5+3")


@pytest.mark.distributed
def test_documents_of_several_lengths_train_as_the_plain_model_does() -> None:
    """On a ring, and where heads are traded."""
    check(2, replace(LENGTHS, layers=1), OVER_CONTEXT[1:])


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_documents_of_several_lengths_under_more_plans_train_as_the_plain_model_does() -> None:
    long = LENGTHS.changed(kv_heads=0)
    check(1, LENGTHS, ONE[:1])
    check(2, LENGTHS, [*OVER_CONTEXT, plan_of(tp=2)])
    for gpt in (
        long,
        long.changed(positions="alibi", documents="9+3+4"),
        long.changed(window=3, global_every=2, sinks=True),
        long.changed(documents="2x3+10", sinks=True),
        long.changed(head_width=4, kv_rank=10, rope_width=2, value_width=8),
        long.changed(documents="", document=2, sequence=24),
    ):
        check(2, gpt, OVER_CONTEXT)
        check(4, gpt, [*RINGS, plan_of(cp=4, context_kind="all_gather", recompute="full")])


@pytest.mark.distributed
@pytest.mark.slow
def test_documents_that_cut_chunks_of_a_ring_train_as_the_plain_model_does() -> None:
    cut = PACKED.changed(kv_heads=0, sequence=24, document=8)
    check(4, cut.changed(document=4), RINGS)
    check(4, cut, RINGS)


@pytest.mark.distributed
@pytest.mark.slow
def test_windows_and_experts_train_as_the_plain_model_does() -> None:
    gpt = MIXTRAL.changed(window=5, global_every=2)
    check(4, gpt, [plan_of(tp=2, dp=2, ep=2, sp=True)])
