"""The plain GPT of `tests/reference.py` trained by other update rules than AdamW.

It shares nothing with simgpt: autograd differentiates, torch's own optimizers update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.reference import GPT2, Batch, Family, ReferenceGPT, Weights

DECAY = 0.1
Named = Mapping[str, nn.Parameter]
Step = Callable[[], None]


def trained_by(
    rule: str,
    weights: Weights,
    batches: Sequence[Batch],
    *,
    heads: int,
    lr: float,
    clip: float | None,
    family: Family = GPT2,
) -> tuple[list[float], dict[str, Tensor]]:
    """The loss before each step and the weights after the last one; gradients are clipped to their
    global norm, unless there is no `clip`."""
    model = ReferenceGPT(weights, heads=heads, family=family)
    named = dict(model.named_parameters())
    steps = STEPS[rule](named, lr)
    losses = []
    for tokens, targets in batches:
        model.zero_grad()
        loss = model.loss(tokens, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            assert nn.utils.clip_grad_norm_(named.values(), clip) > clip
        with in_float64():
            steps()
        losses.append(loss.item())
    return losses, model.copy_of_weights()


def decayed(parameters: Sequence[nn.Parameter]) -> Iterator[dict[str, object]]:
    """Matrices and tables decay, norms and biases do not."""
    yield {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": DECAY}
    yield {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}


def _sgd(momentum: float) -> Callable[[Named, float], Step]:
    def step_of(named: Named, lr: float) -> Step:
        groups = list(decayed(list(named.values())))
        return _step(torch.optim.SGD(groups, lr=lr, momentum=momentum, foreach=False))

    return step_of


OF_LATENTS = (".q_down.w", ".q_up.w", ".kv_down.w", ".kv_up.w")
OF_COLUMNS = (".fc1_latent_proj.w", ".fc2_latent_proj.w")
OF_MAMBA = (".in_proj.w", ".out_proj.w")
OF_LAYERS = (".qkv.w", ".out.w", ".up.w", ".down.w", ".eh_proj.w")
LINEARS = (*OF_LAYERS, *OF_LATENTS, *OF_COLUMNS, *OF_MAMBA)


# A weight's matrices side by side: queries, keys and values; gate and up; z, x, B, C and dt.
def _bands(name: str, weight: Tensor, named: Named) -> list[int]:
    columns = weight.shape[-1]
    if ".qkv." in name:
        queries = named[name.replace("qkv", "out")].shape[0]
        return [queries, (columns - queries) // 2, (columns - queries) // 2]
    if ".in_proj." in name:
        inner = named[name.replace("in_proj", "out_proj")].shape[0]
        states = (named[name.replace("in_proj", "conv")].shape[1] - inner) // 2
        return [inner, inner, states, states, columns - 2 * inner - 2 * states]
    if ".kv_up." in name:
        values = named[name.replace("way.kv_up", "out")].shape[0]
        return [columns - values, values]
    if ".up." in name:
        rows = named[name.replace("up", "down")].shape[-2]
        return [rows] * (columns // rows)
    return [columns]


def _apart(whole: Tensor, bands: Sequence[int]) -> list[Tensor]:
    """The matrices of a weight: its bands, of one expert after the other."""
    experts = whole.unbind() if whole.ndim > 2 else [whole]
    return [part for each in experts for part in each.split_with_sizes(list(bands), 1)]


def _together(parts: Sequence[Tensor], whole: Tensor, bands: Sequence[int]) -> Tensor:
    """The weight of its matrices."""
    count = len(bands)
    rows = [torch.cat(list(parts[at : at + count]), 1) for at in range(0, len(parts), count)]
    return torch.stack(rows).view_as(whole)


def _muon(named: Named, lr: float) -> Step:
    """torch.optim.Muon of the linears' matrices, one parameter each, AdamW of all else.

    torch iterates in bfloat16 whatever the gradient is; `in_float64` lets it keep float64.
    """
    linears = {n: p for n, p in named.items() if n.endswith(LINEARS)}
    bands = {name: _bands(name, p, named) for name, p in linears.items()}
    apart = {
        name: [nn.Parameter(part.clone()) for part in _apart(p.detach(), bands[name])]
        for name, p in linears.items()
    }
    muon = torch.optim.Muon(
        [part for parts in apart.values() for part in parts],
        lr=lr,
        weight_decay=DECAY,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = [p for name, p in named.items() if name not in linears]
    adamw = torch.optim.AdamW(list(decayed(rest)), lr=lr, betas=(0.9, 0.95), foreach=False)

    def step() -> None:
        for name, parts in apart.items():
            whole = linears[name].grad
            assert whole is not None
            for part, grad in zip(parts, _apart(whole, bands[name]), strict=True):
                part.grad = grad.clone()
        muon.step()  # type: ignore[no-untyped-call]
        adamw.step()
        for name, parts in apart.items():
            own = [part.detach() for part in parts]
            linears[name].data.copy_(_together(own, linears[name], bands[name]))

    return step


@contextmanager
def in_float64() -> Iterator[None]:
    """torch.optim.Muon without its cast to bfloat16."""
    cast = Tensor.bfloat16
    Tensor.bfloat16 = lambda tensor: tensor.clone()  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Tensor.bfloat16 = cast  # type: ignore[method-assign]


def _step(optimizer: Optimizer) -> Step:
    return lambda: optimizer.step() and None


STEPS: Mapping[str, Callable[[Named, float], Step]] = {
    "sgd": _sgd(0.0),
    "sgd-momentum": _sgd(0.9),
    "lomo": _sgd(0.0),
    "muon": _muon,
}
