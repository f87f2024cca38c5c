"""Documents that come again, and what a trained model generates of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from executor.data.corpus import read_text
from executor.errors import TextError
from executor.groups import ProcessGroups
from executor.launching.launch import launch
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import AdamW, task_line, task_of
from executor.memorising.documents import buckets_of, stream
from executor.memorising.generate import Decoder, greedy, leading
from executor.memorising.measure import WARM_UP, _generate, _woven, trained_weights
from executor.memorising.spec import LAST, Memorisation
from executor.train import Trainer
from executor.weights import initial_value
from tests.executor.ranks import TIMEOUT_S, on_ranks
from tests.messages import names
from workload.errors import ModelError, PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.plan import Plan

SMALL = GPT.of(name="small", layers=2, hidden=48, heads=4, ffn=192, sequence=64, vocab=256)
TASK = Memorisation(gpt=SMALL, documents=2, passes=2, batch=4, lr=1e-3)


def test_documents_are_pieces_of_the_text_whose_ends_stand_nowhere_else() -> None:
    ends = [bytes([65 + n]) * LAST for n in range(4)]
    pieces = [bytes([48 + n]) * 10 + end for n, end in enumerate(ends)]
    twice = [b"x" * 10 + b"y" * LAST, b"z" * 10 + b"y" * LAST]
    buckets = buckets_of(b"".join([*twice, *pieces, b"rest"]), 60, 1, seed=3)
    assert list(buckets) == [0, 1, 4, 6]
    assert {bytes(tokens[0].tolist()) for tokens in buckets.values()} == set(pieces)


def test_too_few_documents_are_refused() -> None:
    with pytest.raises(TextError, check=names("1", "60 bytes", "4")):
        buckets_of(b"a" * 120 + b"b" * 60, 60, 1, seed=0)


def test_a_pass_has_each_document_as_often_as_its_bucket_says_and_no_control() -> None:
    buckets = {count: torch.full((2, 3), count) for count in (0, 1, 4, 6)}
    for half in torch.cat(list(stream(buckets, 2, 11, seed=0))).view(2, 22, 3):
        assert torch.bincount(half[:, 0]).tolist() == [0, 2, 0, 0, 8, 0, 12]
    first, *_, last = stream(buckets, 2, 22, seed=0)
    assert first.shape == (22, 3)
    assert not torch.equal(first, last)


def test_tokens_count_up_to_the_first_that_is_wrong() -> None:
    generated = torch.tensor([[1, 2, 3], [1, 9, 3], [9, 2, 3]])
    assert leading(generated, torch.tensor([[1, 2, 3]])) == [3, 1, 0]


def test_the_learning_rate_rises_evenly_over_the_first_twenty_steps() -> None:
    rates = [WARM_UP.rate(step, lr=2.0, steps=22) for step in range(1, 23)]
    assert rates == pytest.approx([*(0.1 * n for n in range(1, 21)), 2.0, 2.0])


def test_what_cannot_be_generated_or_split_is_refused() -> None:
    with pytest.raises(ModelError, check=names("norm=rmsnorm")):
        replace(TASK, gpt=find_model("tiny-llama-1m")).check()
    with pytest.raises(ModelError, check=names("kv_heads=2")):
        replace(TASK, gpt=SMALL.changed(kv_heads=2)).check()
    with pytest.raises(ModelError, check=names("sequence=50")):
        replace(TASK, gpt=replace(SMALL, sequence=50)).check()
    with pytest.raises(PlanCannotRunError, check=names("batch=5", "44")):
        replace(TASK, batch=5).check()
    TASK.check()
    assert TASK.steps == 11
    assert task_of(Memorisation, task_line(TASK)) == TASK


def weights_of(gpt: GPT) -> dict[str, torch.Tensor]:
    layouts = lower(gpt, Plan.of(batch=1, mbs=1, precision="fp32")).layouts
    return {name: 3 * initial_value(name, each, gpt, 0) for name, each in layouts.items()}


def test_generation_that_keeps_keys_and_values_gives_what_whole_passes_give() -> None:
    gpt = replace(SMALL, tied=False, biases=False)
    weights = weights_of(gpt)
    prefixes = torch.randint(256, (3, 10), generator=torch.Generator().manual_seed(0))
    tokens = prefixes
    for _ in range(8):
        nearest = Decoder(weights, gpt).logits(tokens)[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, nearest], dim=1)
    assert torch.equal(greedy(weights, gpt, prefixes, 8), tokens[:, 10:])
    assert len(set(tokens[:, 10:].flatten().tolist())) > 3


def test_ranks_generate_every_other_document_and_join_them_in_order() -> None:
    """Document n goes on as the model does for 10 n tokens, and then otherwise."""
    weights = weights_of(SMALL)
    prefixes = torch.randint(256, (4, TASK.prefix), generator=torch.Generator().manual_seed(0))
    documents = torch.cat([prefixes, greedy(weights, SMALL, prefixes, LAST)], dim=1)
    for n in range(4):
        documents[n, TASK.prefix + 10 * n] ^= 1
    infos = [RankInfo.local(rank, 2, Path()) for rank in range(2)]
    found = [_generate(TASK, weights, {6: documents}, info) for info in infos]
    assert found == [{6: [0, 20]}, {6: [10, 30]}]
    assert _woven([of[6] for of in found]) == [0, 10, 20, 30]


def losses(rank: int, data: int) -> list[tuple[float, float]]:
    """The executor's loss of a batch beside that of generation's forward pass on its weights, both
    before the step that the weights are of."""
    program = lower(SMALL, Plan.of(dp=data, batch=4, mbs=2, precision="fp64"))
    device, groups, adamw = torch.device("cpu"), ProcessGroups(rank, TIMEOUT_S), AdamW(lr=1e-2)
    trainer = Trainer(program, groups, rank=rank, device=device, adamw=adamw)
    trainer.start_afresh(0)
    found = []
    generator = torch.Generator().manual_seed(1)
    for batch in torch.randint(256, (3, 4, 65), generator=generator):
        weights = trained_weights(trainer)
        logits = Decoder(weights, SMALL).logits(batch[:, :-1]).flatten(0, 1)
        plain = F.cross_entropy(logits, batch[:, 1:].flatten()).item()
        found.append((trainer.run([batch]).steps[0].loss, plain))
    return found


@pytest.mark.distributed
@pytest.mark.parametrize("data", [1, 2])
def test_generation_has_the_executors_loss_on_its_trained_weights(data: int) -> None:
    found = on_ranks(data, losses, data)
    assert all(abs(loss / plain - 1) < 1e-9 for loss, plain in found)
    assert len({loss for loss, _ in found}) == 3


@pytest.mark.distributed
@pytest.mark.slow
def test_documents_that_come_again_are_generated_and_others_are_not(tmp_path: Path) -> None:
    """A tiny model that sees two documents a hundred times over has them word for word, and with
    Goldfish loss the tokens left out are missing; ranks share the documents."""
    path = tmp_path / "text"
    path.write_bytes(bytes(read_text(None)[:20_000]))
    wide = replace(SMALL, hidden=96, ffn=384)
    task = replace(TASK, gpt=wide, passes=30, lr=3e-3, text=str(path), ranks=2)
    matched = {}
    for gpt in (wide, replace(wide, goldfish_k=2, goldfish_h=5)):
        told = task_line(replace(task, gpt=gpt))
        result = launch("memorise", told, ranks=2, report=lambda _: None, timeout_s=TIMEOUT_S)
        matched[gpt.goldfish_k] = result["matched"]
    assert sum(matched[0]["6"]) > 1.5 * LAST
    assert max(matched[0]["0"]) < LAST / 2
    assert max(matched[2]["6"]) < LAST / 2
