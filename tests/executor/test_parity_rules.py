"""Every update rule against a plain model trained by torch's own optimizers, in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from executor.groups import ProcessGroups
from executor.launching.task_specs import AdamW
from executor.train import Trainer
from tests.examples import one_in
from tests.executor.ranks import TIMEOUT_S, on_ranks
from tests.executor.test_parity import TINY, batches, family, start
from tests.executor.test_parity_experts import DEEPSEEK, MIXTRAL
from tests.executor.test_parity_hybrid import DENSE as HYBRID
from tests.executor.test_parity_hybrid import NANO
from tests.executor.test_parity_latent import V3
from tests.executor.whole import wholes
from tests.reference_rules import trained_by
from tests.reference_zeroth_order import fedkseed, mezo
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.rules.fedkseed import CANDIDATES

TOLERANCE, CLIP, BATCH = 1e-9, 0.1, 16
# So large that a step changes weights by several per cent.
LR = {"sgd": 0.5, "sgd-momentum": 0.5, "muon": 0.01, "lomo": 0.05}
LR |= {"mezo": 0.002, "fedkseed-step": 0.002}
SHORT = replace(TINY, layers=1)
LLAMA = TINY.changed(
    kv_heads=2,
    norm="rmsnorm",
    activation="swiglu",
    positions="rope",
    biases=False,
    tied=False,
)


Reference = tuple[list[float], dict[str, torch.Tensor]]


def reference_of(gpt: GPT, plan: Plan) -> Reference:
    """What a plan must come to; replicas with directions of their own have sequences of their own
    as well."""
    if plan.training.optimizer != "fedkseed-step":
        return reference(plan.training.optimizer, gpt, plan.batch)
    cell = torch.arange(plan.batch) // plan.mbs % (plan.z * plan.dp)
    replicas = [torch.where(cell // plan.z == number)[0] for number in range(plan.dp)]
    how = {"heads": gpt.attention.heads, "lr": LR[plan.training.optimizer], "family": family(gpt)}
    return fedkseed(start(gpt), pairs_of(gpt, plan.batch), replicas, candidates=CANDIDATES, **how)  # type: ignore[arg-type]


def pairs_of(gpt: GPT, sequences: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(batch[:, :-1], batch[:, 1:]) for batch in batches(gpt, sequences)]


@cache
def reference(rule: str, gpt: GPT, sequences: int) -> Reference:
    pairs = pairs_of(gpt, sequences)
    if rule == "mezo":
        return mezo(start(gpt), pairs, heads=gpt.attention.heads, lr=LR[rule], family=family(gpt))
    how = {
        "heads": gpt.attention.heads,
        "lr": LR[rule],
        "clip": None if rule == "lomo" else CLIP,
        "family": family(gpt),
    }
    return trained_by(rule, start(gpt), pairs, **how)  # type: ignore[arg-type]


def differences(rank: int, gpt: GPT, plans: list[Plan]) -> list[tuple[float, float]]:
    """On rank 0 for each plan the largest relative error of losses and of weights."""
    groups, found = ProcessGroups(rank, TIMEOUT_S), []
    for plan in plans:
        program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"])
        adamw = AdamW(lr=LR[plan.training.optimizer], clip=CLIP)
        cpu = torch.device("cpu")
        trainer = Trainer(program, groups, rank=rank, device=cpu, adamw=adamw)
        whole = start(gpt)
        trainer.start_from((name, whole[name]) for name in program.layouts)
        run = trainer.run(batches(gpt, plan.batch))
        assert run.carried == program.comm_bytes
        if not any(buffer.rows_of for buffer in program.buffers.values()):
            assert run.peak_bytes >= program.peak.total_bytes
        held = {name: (trainer.table[name], layout) for name, layout in program.layouts.items()}
        everything = wholes(held, plan)
        losses, weights = reference_of(gpt, plan) if rank == 0 else ([], {})
        pairs = zip(run.steps, losses, strict=rank == 0)
        loss_error = max((abs(step.loss - loss) / loss for step, loss in pairs), default=0.0)
        errors = (
            float((w - weights[name]).norm() / weights[name].norm()) for name, w in everything
        )
        found.append((loss_error, max(errors, default=0.0)))
    return found


def check(ranks: int, rule: str, texts: list[str], gpt: GPT = TINY, batch: int = BATCH) -> None:
    rest = f",optimizer={rule},precision=fp64"
    plans = [parse_plan(text + rest, batch=batch) for text in texts]
    found = on_ranks(ranks, differences, gpt, plans)
    wrong = [pair for pair in zip(texts, found, strict=True) if max(pair[1]) > TOLERANCE]
    assert wrong == []


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("rule", "texts"),
    one_in(2, [("sgd", ["dp=2,zero=3"]), ("sgd-momentum", ["tp=2,mbs=4", "dp=2,zero=1"])]),
)
def test_sgd_trains_as_torch_s_does(rule: str, texts: list[str]) -> None:
    check(2, rule, texts, SHORT)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("rule", ["sgd", "sgd-momentum"])
def test_sgd_does_so_under_more_plans(rule: str) -> None:
    texts = ["tp=2,dp=2,mbs=4", "z=2,dp=2,zero=1", "dp=4,zero=2,shard=2,mbs=2"]
    texts += ["y=2,dp=2,zero=3,recompute=full", "dp=2,pp=2,mbs=2,zero=1"]
    check(4, rule, texts)


@pytest.mark.slow
@pytest.mark.distributed
def test_muon_trains_as_torch_s_does_on_matrices_gathered_over_every_axis() -> None:
    texts = [
        "tp=2,y=2,mbs=8",
        "tp=2,z=2,recompute=full,mbs=4",
        "z=2,dp=2,zero=1,mbs=2",
        "y=2,dp=2,zero=2",
        "z=2,dp=2,zero=3,order=dp-tp-pp",
        "dp=4,zero=1,shard=2",
        "dp=2,pp=2,mbs=2,offload=optimizer",
    ]
    check(4, "muon", texts)
    check(4, "muon", texts[:3], LLAMA)


@pytest.mark.distributed
def test_muon_s_tiles_with_zeros_behind_them_train_as_whole_ones() -> None:
    check(3, "muon", ["dp=3,zero=1"], SHORT, batch=24)


@pytest.mark.slow
@pytest.mark.distributed
def test_muon_s_tiles_do_so_where_weights_are_split_too() -> None:
    check(3, "muon", ["z=3,mbs=4", "dp=3,zero=3,mbs=4"], batch=24)


KIMI = V3.changed(mtp_layers=1)  # experts, latent attention and a module for further tokens


@pytest.mark.distributed
def test_muon_trains_so_on_the_matrices_of_each_expert_and_of_latent_attention() -> None:
    gpt = KIMI.changed(layers=1, dense_layers=0)
    check(2, "muon", ["dp=2,ep=2,zero=1"], gpt)


@pytest.mark.distributed
def test_muon_trains_so_on_matrices_that_x_splits() -> None:
    check(2, "muon", ["tp=2"], SHORT)


@pytest.mark.slow
@pytest.mark.distributed
def test_muon_does_so_however_experts_are_split() -> None:
    rows = "sp=true"
    whole = f"tp=2,ep=2,etp=1,{rows}"
    check(2, "muon", ["tp=2", "dp=2,zero=1", "y=2", "z=2,recompute=full", whole], MIXTRAL)
    check(2, "muon", ["tp=2", f"tp=2,{rows}", "dp=2,zero=3"], KIMI)
    check(2, "muon", ["dp=2,ep=2,zero=1"], replace(DEEPSEEK, biases=True))
    columns = DEEPSEEK.changed(expert_latent=24)
    check(2, "muon", ["dp=2,ep=2,zero=1", "tp=2"], columns)
    check(3, "muon", ["z=3,mbs=4", "dp=3,zero=3,mbs=4"], DEEPSEEK, batch=24)
    texts = [
        "dp=4,ep=2,etp=2,zero=2",
        "z=2,dp=2,ep=2,zero=3",
        f"tp=2,dp=2,etp=4,{rows}",
        f"tp=2,dp=2,etp=4,order=dp-tp-pp,{rows}",
        "y=2,dp=2,ep=2",
        "tp=2,y=2",
        "dp=4,ep=2,zero=1,shard=2",
        "dp=2,z=2,ep=2,offload=optimizer,zero=1",
    ]
    check(4, "muon", texts, MIXTRAL)
    folded = f"tp=2,dp=2,ep=2,etp=1,{rows},zero=1"
    staged = "pp=2,dp=2,ep=2,mbs=4,zero=1"
    check(4, "muon", [staged, folded, "cp=2,dp=2,ep=4"], KIMI)


@pytest.mark.distributed
def test_lomo_trains_as_sgd_that_clips_nothing() -> None:
    check(2, "lomo", ["dp=2,zero=3,recompute=full"], LLAMA)


@pytest.mark.slow
@pytest.mark.distributed
def test_lomo_does_so_under_more_plans() -> None:
    texts = ["tp=2,z=2,recompute=full", "dp=4", "z=2,dp=2,zero=3"]
    more = ["tp=2,y=2", "z=2,dp=2,reshard=false,recompute=selective"]
    more += ["dp=4,zero=3,shard=2,overlap=none"]
    check(4, "lomo", [*texts, *more])
    check(4, "lomo", texts[::2], LLAMA)


@pytest.mark.distributed
def test_muon_trains_so_on_the_bands_of_a_mamba_s_linear() -> None:
    check(2, "muon", ["tp=2", "dp=2,zero=1"], HYBRID)


@pytest.mark.slow
@pytest.mark.distributed
def test_every_rule_trains_hybrids() -> None:
    check(2, "muon", ["y=2", "z=2,recompute=full", "pp=2,mbs=4", "dp=2,zero=3"], NANO)
    check(2, "muon", ["cp=2,zero=1,recompute=full"], NANO)
    check(2, "lomo", ["dp=2,mbs=8,zero=3", "tp=2,mbs=16", "cp=2,mbs=16"], HYBRID)
    check(2, "mezo", ["y=2,mbs=8", "cp=2,mbs=8"], HYBRID)
    check(2, "fedkseed-step", ["tp=2,mbs=8"], HYBRID)


@pytest.mark.distributed
def test_mezo_trains_as_a_plain_one_that_draws_whole_directions() -> None:
    check(2, "mezo", ["y=2,mbs=8"], SHORT)


@pytest.mark.slow
@pytest.mark.distributed
def test_mezo_moves_the_same_elements_alike_however_they_are_cut() -> None:
    texts = [
        "tp=2,y=2,z=2,mbs=4",
        "tp=2,dp=4,zero=3,shard=2",
        "tp=2,pp=4,mbs=2,sp=true",
        "z=2,pp=2,vpp=2,dp=2,mbs=1,order=pp-dp-z-y-tp",
    ]
    check(4, "mezo", ["tp=2,dp=2,mbs=4", "z=2,dp=2,zero=3,overlap=none"])
    four_layers = replace(TINY, layers=4)
    check(8, "mezo", texts, four_layers)
    check(8, "mezo", texts[:2], replace(LLAMA, layers=4))
    check(3, "mezo", ["z=3,mbs=4", "dp=3,zero=3,mbs=4"], batch=24)
    check(4, "fedkseed-step", ["z=2,dp=2,mbs=2"], LLAMA)
    check(4, "fedkseed-step", ["dp=4,mbs=2", "tp=2,dp=2"])
    check(4, "mezo", ["y=2,z=2,mbs=4", "dp=2,pp=2,mbs=2"])
    check(4, "fedkseed-step", ["z=2,dp=2,mbs=2", "dp=2,pp=2"])


@pytest.mark.distributed
def test_replicas_take_each_other_s_directions_by_scalars_alone() -> None:
    check(2, "fedkseed-step", ["dp=2,mbs=4"], SHORT)


def peaks(rank: int, gpt: GPT, plans: list[Plan]) -> list[tuple[str, float]]:
    """On one rank for each plan the op at its peak, and torch's peak over the program's."""
    found = []
    for plan in plans:
        program, cpu = lower(gpt, plan), torch.device("cpu")
        groups = ProcessGroups(rank, TIMEOUT_S)
        trainer = Trainer(program, groups, rank=rank, device=cpu, adamw=AdamW())
        trainer.start_afresh(0)
        run = trainer.run([torch.zeros(1, gpt.sequence + 1, dtype=torch.int64)])
        found.append((program.peak.op, run.peak_bytes / program.peak.total_bytes))
    return found


@pytest.mark.slow
@pytest.mark.distributed
def test_torch_allocates_what_a_rule_s_program_says_also_where_the_update_is_the_peak() -> None:
    wide = TINY.changed(hidden=256, heads=8, ffn=2048, layers=2, sequence=16, vocab=64)
    texts = [f"optimizer=muon,precision={word}" for word in ("fp32", "bf16")]
    texts += [f"optimizer={rule},precision=fp32" for rule in ("lomo", "mezo")]
    found = on_ranks(1, peaks, wide, [parse_plan(text, batch=1) for text in texts])
    assert [op.startswith("l0.muon.") for op, _ in found] == [True, True, False, False]
    experts = find_model("tiny-deepseek-2m").changed(experts=32, sequence=32)
    found += on_ranks(1, peaks, experts, [parse_plan(texts[0], batch=1)])
    assert found[4][0].startswith("l1.muon.")
    assert all(1 <= share <= 1.02 for _, share in found)
