"""A loss in chunks of a micro-batch's rows, or fused with its gradient: sizes, ops, refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from simulator.search import search
from simulator.search.baselines import exhaustive
from simulator.search.problem import SearchProblem, unproved
from simulator.search.space import space_of
from tests.messages import assert_names, names
from tests.simulator.search.answers import finds_the_best, proved
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.lowering.evaluation import lower_forward
from workload.lowering.layers.cross_entropy import chunk_rows
from workload.op import Op, layer_part
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

TINY = replace(find_model("tiny-30k"), vocab=250)  # hidden 32, sequences of 16
FURTHER = TINY.changed(mtp_layers=1, positions="rope")
LLAMA = replace(find_model("llama-3-8b"), layers=1)
ROWS, VOCAB = 4 * 8192, 128_256


def plan_of(text: str, batch: int = 8) -> Plan:
    return parse_plan(text, batch=batch)


def of_llama(words: str) -> Program:
    return lower(LLAMA, plan_of(f"dp=8,zero=3,mbs=4,recompute=full{words}", 32))


def largest(program: Program) -> int:
    """Bytes of the largest tensor whose columns are the vocabulary's."""
    every = program.buffers.values()
    return max(b.nbytes for b in every if b.shape[1:] == (VOCAB,))


def fullest(program: Program) -> Op:
    """The op at which most memory is held."""
    totals = program.levels.sum(axis=0)
    return program.ops[int(totals.argmax())]


def test_logits_of_llama_3_8b_are_one_eighth_and_the_peak_goes_to_a_layer() -> None:
    whole, chunks = of_llama(""), of_llama(",loss_chunks=8")
    assert largest(whole) == ROWS * VOCAB * 4  # 15.7 GiB in fp32, beside 7.8 GiB in bf16
    assert largest(chunks) == ROWS // 8 * VOCAB * 4
    assert fullest(whole).label == "loss.grad"
    assert fullest(chunks).part == layer_part(0)
    saved = whole.peak.total_bytes - chunks.peak.total_bytes
    assert saved > ROWS * VOCAB * 4


def test_a_fused_loss_has_logits_of_ligers_chunks_in_the_precision_of_training() -> None:
    program = of_llama(",loss=fused")
    assert largest(program) == 1024 * VOCAB * 2
    kinds = Counter(op.kind for op in program.ops)
    assert kinds["fused_loss"] == 32
    assert not {"loss_maximum", "loss_sums", "loss_grad"} & kinds.keys()
    (kernel, *_) = (op for op in program.ops if op.kind == "fused_loss")
    logits = 1024 * VOCAB * 2
    assert 3 * logits <= kernel.nbytes < 3.001 * logits


@pytest.mark.parametrize(
    ("rows", "vocab", "hidden", "found"),
    [
        (32_768, 128_256, 4096, 1024),  # 32 times as many logits as inputs, 1,024 rows each
        (16_384, 32_000, 4096, 2048),  # the kernel's own example
        (36, 250, 32, 8),  # 8 times as many, 5 rows, rounded up
        (4, 250, 32, 1),
        (3, 16, 32, 3),  # no more than there are
    ],
)
def test_chunks_of_a_fused_loss_are_as_liger_kernel_counts_them(
    rows: int, vocab: int, hidden: int, found: int
) -> None:
    assert chunk_rows(rows, vocab, hidden) == found


@pytest.mark.parametrize("words", ["loss_chunks=4", "loss=fused", "loss=fused,loss_chunks=2"])
@pytest.mark.parametrize("gpt", [TINY, replace(TINY, tied=False)], ids=["tied", "untied"])
def test_chunks_compute_what_all_rows_at_once_do(words: str, gpt: GPT) -> None:
    whole, chunks = (lower(gpt, plan_of(f"mbs=4{more}")) for more in ("", f",{words}"))
    assert chunks.hardware_flops == whole.hardware_flops
    assert chunks.model_flops == whole.model_flops


def test_a_last_chunk_may_have_fewer_rows() -> None:
    gpt = replace(TINY, sequence=36)
    program = lower(gpt, plan_of("mbs=1", 1))
    fused = lower(gpt, plan_of("mbs=1,loss=fused", 1))
    shapes = [fused.buffers[op.writes[0]].shape[0] for op in fused.ops if op.kind == "fused_loss"]
    assert shapes == [8, 8, 8, 8, 4]
    assert fused.hardware_flops == program.hardware_flops


@pytest.mark.parametrize("words", ["zero=3,dp=2", "z=2", "zero=2,dp=2,overlap=none"])
def test_a_weight_is_gathered_and_its_gradient_scattered_once_a_micro_batch(words: str) -> None:
    gpt = replace(TINY, tied=False)
    program = lower(gpt, plan_of(f"mbs=2,loss_chunks=4,{words}"))
    own = [op for op in program.ops if op.part.kind == "head" and op.communicates]
    kinds = Counter(op.kind for op in own if op.micro_batch == 0)
    assert kinds["reduce_scatter"] == 1
    assert kinds["all_gather"] == ("zero=2" not in words)


@pytest.mark.parametrize(
    ("gpt", "words", "named"),
    [
        (TINY, "loss_chunks=3", ("loss_chunks=3", "micro-batch=64")),
        (TINY, "loss=fused,tp=2", ("loss=fused", "tp=2", "tp=1", "loss_chunks")),
        (TINY, "loss=fused,y=2", ("loss=fused", "y=2", "y=1", "loss_chunks")),
        (FURTHER, "loss_chunks=2", ("mtp_layers=1",)),
        (FURTHER, "loss=fused", ("mtp_layers=1",)),
    ],
)
def test_what_cannot_be_in_chunks_is_refused_by_name(
    gpt: GPT, words: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        lower(gpt, plan_of(f"mbs=4,{words}"))


def test_a_search_keeps_chunks_that_divide_and_refuses_those_that_follow_from_plans() -> None:
    space = space_of(SearchProblem(TINY, devices=2, batch=4, fixed={"loss_chunks": 32}))
    assert {*space.columns["mbs"].tolist()} == {2, 4}  # of 32 and 64 rows
    problem = SearchProblem(TINY, devices=2, batch=8, fixed={"loss": "fused"})
    assert_names(unproved(problem, load_machine("dgx-h100")), "loss=fused", "loss_chunks")


def test_a_search_finds_the_best_plan_with_so_many_chunks_of_a_fused_loss() -> None:
    fixed = {"loss": "fused", "loss_chunks": 4, "overlap": (), "schedule": "1f1b"}
    fixed |= {"recompute": "none"}
    problem = SearchProblem(TINY, devices=2, batch=4, fixed=fixed)
    machine = load_machine("dgx-h100")
    *_, found = search(problem, machine, top=3)
    *_, every = exhaustive(problem, machine, top=1000)
    finds_the_best(problem, machine)
    peaks = sorted(each.memory.peak_bytes for each in every.found)
    half = peaks[len(peaks) // 2]
    few = proved(problem, machine, capacity_bytes=half).best
    assert few is not None
    assert few.step_s == min(e.step_s for e in every.found if e.memory.peak_bytes <= half)
    assert {(each.plan.training.loss, each.plan.training.loss_chunks) for each in found.found} == {
        ("fused", 4)
    }
    assert {*space_of(problem).columns["tp"].tolist()} == {1}
    with pytest.raises(PlanCannotRunError, match="tp=2"):
        space_of(replace(problem, fixed={**fixed, "tp": 2}))


@pytest.mark.parametrize("words", ["loss_chunks=2", "loss=fused"])
def test_an_evaluation_and_rules_without_gradients_make_none(words: str) -> None:
    for program in (
        lower_forward(TINY, plan_of(f"mbs=2,{words}")),
        lower(TINY, plan_of(f"mbs=2,optimizer=mezo,{words}")),
    ):
        forms = {op.attributes.get("form") for op in program.ops if op.part.kind == "head"}
        assert forms <= {None, "NT"}
        assert {op.kind for op in program.ops} & {"loss_mean", "fused_loss"}
