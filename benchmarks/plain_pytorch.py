"""Steps of the executor beside those of a plain PyTorch loop: `python -m benchmarks.plain_pytorch`.

The loop is a GPT-2 of torch.nn modules with autograd, clipping and fused AdamW, in the precision of
the plan (bf16 with fp32 master weights is autocast there). Both train on one rank, on the same
batches, in turns of a few steps, so that what else runs on the machine slows both; the ratio is
the median over the turns of the loop's step time by the executor's, and 1 means as fast. A step
is from a batch in the host's memory to its loss there: seconds on a GPU, on a CPU those that the
process computed, so that waiting for a core does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import click
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks._command import Row, benchmark
from executor.data.batches import feed
from executor.dry.groups import LoneGroups, fake_job
from executor.launching.task_specs import AdamW
from executor.timing import NoRecorder
from executor.train import WARM_UP_STEPS, Trainer
from executor.training.graphs import CudaGraph
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.plan import Plan
from workload.program import Program

TURNS, STEPS = 7, 3
GRAPHED = ("graphed_s", "graphed_ratio")
COLUMNS = (
    *("model", "precision", "batch", "ops", "executor_s", "plain_s"),
    *("ratio", "ratio_low", "ratio_high", *GRAPHED),
)


class Block(nn.Module):
    """A layer: causal attention and an MLP, each behind a LayerNorm and added to its input."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.heads = gpt.attention.heads
        self.norms = nn.ModuleList(nn.LayerNorm(gpt.hidden) for _ in range(2))
        self.qkv, self.out = (
            nn.Linear(gpt.hidden, 3 * gpt.hidden),
            nn.Linear(gpt.hidden, gpt.hidden),
        )
        self.up, self.down = nn.Linear(gpt.hidden, gpt.ffn), nn.Linear(gpt.ffn, gpt.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sequences, length, hidden) to the same."""
        parts = self.qkv(self.norms[0](x)).unflatten(2, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(context.transpose(1, 2).flatten(2))
        mixed: torch.Tensor = self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        return x + mixed


class Plain(nn.Module):
    """GPT-2: learned positions, tied embedding, and the mean cross-entropy as its result."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.tokens = nn.Embedding(gpt.vocab, gpt.hidden)
        self.places = nn.Embedding(gpt.sequence, gpt.hidden)
        self.layers = nn.Sequential(*(Block(gpt) for _ in range(gpt.layers)))
        self.norm = nn.LayerNorm(gpt.hidden)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The loss of (sequences, length + 1) tokens."""
        x = self.layers(self.tokens(batch[:, :-1]) + self.places.weight)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


class Loop:
    """The plain training loop."""

    def __init__(self, gpt: GPT, plan: Plan, device: torch.device) -> None:
        self.model = Plain(gpt).to(device)
        self.device, self.half = device, plan.training.precision == "bf16"
        self.clock = clock_of(device)
        self.adamw = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)

    def step_s(self, batches: Sequence[torch.Tensor]) -> float:
        """The median of a few steps, after as many to warm up as the executor has."""
        seconds = []
        for batch in batches:
            started = self.clock()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
                loss = self.model(batch.to(self.device))
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.adamw.step()
            self.adamw.zero_grad()
            float(loss.detach())
            seconds.append(self.clock() - started)
        return statistics.median(seconds[WARM_UP_STEPS:])


def clock_of(device: torch.device) -> Callable[[], float]:
    """What a step is timed by."""
    return time.process_time if device.type == "cpu" else time.perf_counter


def executor_s(trainer: Trainer, batches: Sequence[torch.Tensor]) -> float:
    """The median of a few steps of the executor, after those to warm up."""
    clock, seconds = clock_of(trainer.place.device), []
    for batch in batches:
        started = clock()
        feed(batch, trainer.program, trainer.table, trainer.place)
        trainer._play(trainer.place, NoRecorder())
        float(trainer.table["loss"])
        seconds.append(clock() - started)
    return statistics.median(seconds[WARM_UP_STEPS:])


def trainer_of(program: Program, device: torch.device, graph: CudaGraph | None = None) -> Trainer:
    """The executor on one rank, with initial weights."""
    groups = LoneGroups(0)
    trainer = Trainer(program, groups, rank=0, device=device, adamw=AdamW(), graph=graph)
    trainer.start_afresh(0)
    return trainer


def compared(
    name: str, precision: str, batch: int, device: torch.device, *, graphs: bool, turns: int
) -> Row:
    """Both in turns: their median step times, and the ratio of each turn's; with graphs those of
    the executor's captured steps too."""
    gpt = find_model(name)
    plan = Plan.of(batch=batch, mbs=batch, precision=precision)
    data = [torch.randint(gpt.vocab, (batch, gpt.sequence + 1)) for _ in range(STEPS)]
    batches = [*data[:1] * WARM_UP_STEPS, *data]
    loop = Loop(gpt, plan, device)
    program, graphed = lower(gpt, plan, 0), []
    with fake_job(0, 1):
        trainer = trainer_of(program, device)
        captured = trainer_of(program, device, graph=CudaGraph()) if graphs else None
        pairs = []
        for _ in range(turns):
            pairs.append((executor_s(trainer, batches), loop.step_s(batches)))
            if captured is not None:
                graphed.append((executor_s(captured, batches), pairs[-1][1]))
    ratios = sorted(plain / own for own, plain in pairs)
    own, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
    about = dict.fromkeys(GRAPHED)
    if graphed:
        about |= {
            "graphed_s": statistics.median(own for own, _ in graphed),
            "graphed_ratio": statistics.median(plain / own for own, plain in graphed),
        }
    return {
        "model": name,
        "precision": precision,
        "batch": batch,
        "ops": len(program.ops),
        "executor_s": own,
        "plain_s": plain,
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
        **about,
    }


@benchmark(*COLUMNS)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option("--models", default="tiny-30k,tiny-2m,tiny-25m", show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32")
@click.option("--batch", default=4, show_default=True)
@click.option("--cuda-graphs", is_flag=True)
def main(
    *, device: str, models: str, precision: str, batch: int, cuda_graphs: bool, smallest: bool
) -> list[Row]:
    """Steps of the executor beside those of a plain PyTorch loop."""
    if cuda_graphs and device == "cpu":
        raise click.UsageError("--cuda-graphs needs --device cuda")
    torch.set_num_threads(1)
    where = torch.device(device, 0) if device == "cuda" else torch.device("cpu")
    names, turns = (["tiny-30k"], 1) if smallest else (models.split(","), TURNS)
    return [
        compared(name, precision, batch, where, graphs=cuda_graphs, turns=turns) for name in names
    ]


if __name__ == "__main__":
    main()
