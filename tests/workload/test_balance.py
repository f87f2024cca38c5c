"""What balances experts in models and programs: counted by hand, and refused where wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any, Unpack

import pytest
import torch

from executor.kernels.balance import balance_loss, balance_sums
from executor.kernels.experts import route
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.messages import names
from tests.workload.test_experts import TWO, of_layer, program_of
from workload.errors import ModelError
from workload.grid import Grid
from workload.lowering import lower, lower_forward
from workload.op import Op
from workload.op_attributes import Attributes
from workload.plan_text import parse_plan

AT = RankContext(grid=Grid(), rank=0, device=torch.device("cpu"), adamw=AdamW())
BOTH = TWO.changed(router="sigmoid", router_bias=True, balance_loss=0.01)


def chosen(
    logits: list[float], biases: list[float] | None = None, **how: Unpack[Attributes]
) -> list[int]:
    """The experts of one token."""
    reads = [torch.tensor([logits]).double()]
    reads += [] if biases is None else [torch.tensor(biases).double()]
    writes = [torch.empty(1, how["topk"]).double(), torch.empty(1, how["topk"], dtype=torch.int64)]
    route(Op("r", "route", (), (), attributes={"factor": 1.0, **how}), reads, writes, AT)
    return [int(each) for each in writes[1][0]]


def test_a_group_stands_for_its_best_expert_or_for_its_best_two_scores() -> None:
    """The second group has the best expert, the first the best two: of sigmoids .73 + .73 against
    .88 + .12."""
    logits = [1.0, 1.0, 2.0, -2.0]
    how: Attributes = {"topk": 1, "groups": 2, "topk_groups": 1}
    for router, expected in (("softmax", 2), ("sigmoid", 0)):
        how["router"] = router
        assert chosen(logits, **how) == [expected]


def test_biases_count_for_the_choice_and_of_equal_scores_the_first_is_chosen() -> None:
    assert chosen([1.0, 0.0, 0.0], [0.0, 0.5, 0.5], router="sigmoid", topk=2) == [1, 2]
    assert chosen([0.0, 0.0, 0.0, 0.0], [0.0] * 4, router="sigmoid", topk=2) == [0, 1]


def test_even_use_costs_the_coefficient_and_one_expert_for_all_as_many_times_as_there_are() -> None:
    """Of four experts one each: 4 x (1/4 x 1/4) x 4 = 1; all to one with score 1: 4."""
    how: Attributes = {"router": "softmax", "runs": 1, "rows": 4, "coefficient": 0.5, "topk": 1}
    how |= {"run": 4, "tokens": 4, "parts": 1, "first": True}
    op = Op("b", "balance_sums", (), (), attributes=how)
    for logits, picked, expected in (
        (torch.zeros(4, 4), torch.arange(4)[:, None], 0.5),
        (torch.eye(4)[:1].expand(4, 4) * 100, torch.zeros(4, 1, dtype=torch.int64), 2.0),
    ):
        sums, total = torch.empty(2, 1, 4).double(), torch.empty(1).double()
        balance_sums(op, [logits.double(), picked], [sums], AT)
        balance_loss(op, [sums], [total], AT)
        assert float(total) == pytest.approx(expected)


def test_counts_are_summed_over_all_tokens_and_biases_are_no_trained_parameters() -> None:
    program = program_of("tp=2,dp=4,ep=2,sp=true", BOTH)
    (summed,) = [op for op in program.ops if op.label == "router.counts.reduce"]
    assert summed.axes == ("tp", "dp")
    assert summed.nbytes == 2 * 8 * 4
    name = "l1.router.correction"
    assert BOTH.parameters - BOTH.changed(router_bias=False).parameters == 2 * 8
    assert program.buffers[name].role == "parameters"
    assert name in program.layouts
    assert f"{name}.grad" not in program.buffers
    assert not any(name in op.writes for op in program.ops if op.kind != "balance_bias")


@pytest.mark.parametrize("schedule", ["zb-v,vpp=2", "dualpipe-v,vpp=2", "dualpipe"])
def test_in_a_v_the_first_loss_of_a_stage_begins_its_sum_and_every_layers_is_added(
    schedule: str,
) -> None:
    """Of eight layers, two of them dense. Each stage of two has layers of both halves of the model,
    or of each half of either copy."""
    gpt = BOTH.changed(layers=8, dense_layers=2)
    plan = parse_plan(f"pp=2,mbs=1,schedule={schedule}", batch=8)
    of_layers, counted = Counter[int](), Counter[int]()
    for stage in range(2):
        program = lower(gpt, plan, stage)
        losses = [op for op in program.ops if op.label == "balance.loss"]
        counts = [op for op in program.ops if op.label == "router.count"]
        own = {op.part.layer for op in losses}
        assert [op.attributes["first"] for op in losses] == [True] + [False] * (len(losses) - 1)
        begun = {op.part.layer for op in counts if op.attributes["first"]}
        assert begun == own == {op.part.layer for op in counts}
        moved = [op.part.layer for op in program.ops if op.label == "router.bias.move"]
        assert sorted(moved) == sorted(own)
        sums = [op for op in program.ops if op.axes == ("opposite",) and "counts" in op.label]
        assert len(sums) == (schedule == "dualpipe")
        of_layers.update(op.part.layer for op in losses)
        counted.update(op.part.layer for op in counts)
    assert of_layers == counted == dict.fromkeys(range(2, 8), 8)


def test_an_evaluation_goes_without_it() -> None:
    plan = parse_plan("mbs=2,batch=4")
    without = lower_forward(BOTH.changed(balance_loss=0.0), plan)
    assert lower_forward(BOTH, plan).ops == without.ops


def test_what_runs_again_neither_counts_nor_adds_to_the_loss() -> None:
    program = program_of("recompute=full,batch=4", BOTH)
    labels = [op.label for op in program.ops]
    assert labels.count("router.count") == labels.count("balance.loss") == 2 * 2
    assert labels.count("balance.sums") == 2 * labels.count("balance.grad") == 8
    loss = of_layer(program, "balance.loss")
    assert loss.attributes["first"] is False


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"router_groups": 3, "router_topk_groups": 1}, ("router_groups=3", "experts=8")),
        ({"router_groups": 4}, ("1", "4", "router_topk_groups", "0")),
        ({"router_groups": 8, "router_topk_groups": 1}, ("topk=2", "1")),
        ({"router_topk_groups": 1}, ("router_topk_groups=1", "router_groups")),
        ({"router_bias": True}, ("router_bias=true", "router=sigmoid")),
        ({"balance_loss": -1.0}, ("balance_loss=-1.0", "0")),
        ({"balance_loss": 0.1, "goldfish_k": 4}, ("goldfish_k",)),
        ({"balance_over": "batch"}, ("balance_over", "batch", "sequence", "micro_batch")),
        ({"experts": 0, "balance_loss": 0.1}, ("topk=2", "experts")),
    ],
)
def test_fields_that_do_not_go_together_are_refused(
    fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError, check=names(*named)):
        TWO.changed(**fields)
