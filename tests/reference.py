"""A GPT trained by one process in plain PyTorch: what every split of it must reproduce.

It shares nothing with simgpt. The model is an `nn.Module`, autograd differentiates it, and
torch's own AdamW updates it. Weight matrices lie as (in_features, out_features), so y = x @ w + b;
the columns of `qkv` are [Q of all heads | K of all heads | V of all heads], a SwiGLU's `up` has
[gate | up].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import reference_experts, reference_further, reference_hybrid, reference_latent
from tests.reference_dropout import Dropout
from tests.reference_goldfish import IGNORED, without_dropped
from tests.reference_llama import RMSNorm, Scaling, alibi, clamped_swiglu, rotated, swiglu
from tests.reference_parts import Linear, Norm, Table

Weights = Mapping[str, Tensor]
Batch = tuple[Tensor, Tensor]
NO_MAMBA = reference_hybrid.Sizes()
NO_DEPTHS = reference_further.Depths()


@dataclass(frozen=True)
class Family:
    """What cannot be read off the weights, as learned positions can; by default GPT-2's."""

    rmsnorm: bool = False
    eps: float = 1e-5
    rope_base: float | None = None
    rope_scaling: Scaling | None = None
    alibi: bool = False
    dropout: float = 0.0
    goldfish_k: int = 0
    goldfish_h: int = 13
    topk: int = 0
    router: str = "softmax"
    router_scale: float = 1.0
    capacity: float = 0.0
    window: int = 0  # tokens that a token sees, itself among them; 0: all
    global_every: int = 0  # so many-th layer sees all
    document: int = 0  # tokens of each of a sequence's documents, which do not see each other
    documents: tuple[int, ...] = ()  # or of each one
    depths: reference_further.Depths = NO_DEPTHS
    router_groups: tuple[int, int] = (0, 0)  # and of how many of them experts are chosen
    router_bias_rate: float = 0.0
    balance_loss: float = 0.0
    balanced_run: int = 0  # tokens of which experts should be chosen evenly
    clamped: bool = False  # SwiGLU as gpt-oss has it
    output_gate: bool = False  # by sigmoids of the last columns of qkv
    squared_relu: bool = False  # in place of GELU
    mamba: reference_hybrid.Sizes = NO_MAMBA
    run: int = 0  # of tokens, of each of which an expert takes no more than its capacity
    cut: tuple[int, int] = (1, 1)  # over how many ranks sequences are, and how many of them at once


GPT2 = Family()


@dataclass(frozen=True)
class Trained:
    """The loss before each step, the global norm of its gradient before clipping, and the weights
    after the last step."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, Tensor]


class Layer(nn.Module):
    """Pre-norm attention, then a pre-norm MLP, each added to the residual stream."""

    def __init__(self, weights: Weights, name: str, heads: int, gelu: str, family: Family) -> None:
        super().__init__()
        self.heads, self.gelu, self.family = heads, gelu, family
        self.number = int(name[1:])
        self.activation = clamped_swiglu if family.clamped else swiglu
        if f"{name}.sinks.w" in weights:
            self.sinks = reference_experts.Weight(weights[f"{name}.sinks.w"])
        self.halves = [norm for norm in ("norm1", "norm2") if f"{name}.{norm}.w" in weights]
        for norm in self.halves:
            self.add_module(norm, norm_of(weights, f"{name}.{norm}", family))
        self.routed = f"{name}.router.w" in weights
        if self.routed:
            self.experts_of(weights, name, family)
        self.latent = f"{name}.kv_down.w" in weights
        if self.latent:
            rope = family.rope_base or 0.0, family.rope_scaling
            self.way = reference_latent.Latent(weights, name, heads, *rope, family.eps)
        for norm in ("qnorm", "knorm"):
            normed = f"{name}.{norm}.w" in weights
            self.add_module(
                norm, norm_of(weights, f"{name}.{norm}", family) if normed else nn.Identity()
            )
        self.scans = f"{name}.in_proj.w" in weights
        if self.scans:
            hidden = weights[f"{name}.in_proj.w"].shape[0]
            self.mixer = reference_hybrid.Mamba(hidden, family.mamba, family.eps)
        self.linears_of(weights, name)
        for place in ("attention", "out", "down"):
            self.add_module(f"drop_{place}", Dropout(family.dropout, f"{name}.{place}"))
        if f"{name}.out.w" in weights:
            self.width = weights[f"{name}.out.w"].shape[0] // heads
        if f"{name}.up.w" in weights:
            up, down = (weights[f"{name}.{linear}.w"].shape for linear in ("up", "down"))
            self.gated = up[1] == 2 * down[0]

    def linears_of(self, weights: Weights, name: str) -> None:
        """Make modules of the linears of attention and of an MLP that there are."""
        for linear in ("qkv", "out", "up", "down"):
            if f"{name}.{linear}.w" in weights:
                shape = weights[f"{name}.{linear}.w"].shape
                self.add_module(linear, Linear(*shape, bias=f"{name}.{linear}.b" in weights))

    def experts_of(self, weights: Weights, name: str, family: Family) -> None:
        """Take the router, the experts and the shared MLP over as modules of the layer's own."""
        self.mixture = reference_experts.Experts(
            weights,
            name,
            topk=family.topk,
            router=family.router,
            scale=family.router_scale,
            capacity=family.capacity,
            run=family.run,
            cut=family.cut,
            activation=self.activation,
            ungated=self.ungated,
            groups=family.router_groups,
            balanced_run=family.balanced_run,
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.scans:
            return x + self.mixer(self.norm1(x))
        if "norm1" in self.halves:
            x = x + self.drop_out(self.out(self.attention(self.norm1(x))))
        if "norm2" not in self.halves:
            return x
        if self.routed:
            return x + self.drop_down(self.mixture(self.norm2(x)))
        up = self.up(self.norm2(x))
        active = self.activation(up) if self.gated else self.ungated(up)
        return x + self.drop_down(self.down(active))

    def ungated(self, up: Tensor) -> Tensor:
        """GELU, or the square of what is above zero."""
        if self.family.squared_relu:
            return reference_hybrid.squared_relu(up)
        return F.gelu(up, approximate=self.gelu)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each (batch, heads, sequence, width), the positions turned into the first two."""
        if self.latent:
            return self.way(x)
        every = self.qkv(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
        every = every[:, : -self.heads] if self.family.output_gate else every
        groups = (every.shape[1] - self.heads) // 2
        q, k, v = every.split([self.heads, groups, groups], dim=1)
        q, k = self.qnorm(q), self.knorm(k)
        base, scaling = self.family.rope_base, self.family.rope_scaling
        if base is not None:
            q, k = rotated(q, base, scaling), rotated(k, base, scaling)
        return q, k, v

    def hidden_from(self, x: Tensor) -> Tensor:
        """Which keys (columns) a query does not see: later ones, and those before its window."""
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        if self.family.document:
            which = torch.arange(x.shape[1], device=x.device) // self.family.document
            later = later | (which[:, None] != which)
        if self.family.documents:
            lengths = torch.tensor(self.family.documents, device=x.device)
            which = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths)
            later = later | (which[:, None] != which)
        every = self.family.global_every
        if not self.family.window or (every and (self.number + 1) % every == 0):
            return later
        return later | torch.ones_like(later).tril(-self.family.window)

    def attention(self, x: Tensor) -> Tensor:
        """Causal softmax(Q K^T / sqrt(d) + ALiBi) V; equal runs of heads share K and V."""
        q, k, v = self.queries_keys_values(x)
        owner = torch.arange(self.heads) * k.shape[1] // self.heads
        scores = q @ k[:, owner].transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.family.alibi:
            scores = scores + alibi(self.heads, x.shape[1], x.dtype)
        scores = scores.masked_fill(self.hidden_from(x), float("-inf"))
        if hasattr(self, "sinks"):
            none = self.sinks.w[:, None, None].expand(*scores.shape[:-1], 1)
            weights = torch.cat([scores, none], dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        mixed = (self.drop_attention(weights) @ v[:, owner]).transpose(1, 2).flatten(2)
        gate = self.qkv(x)[..., -mixed.shape[-1] :] if self.family.output_gate else None
        return mixed if gate is None else mixed * torch.sigmoid(gate)


def norm_of(weights: Weights, name: str, family: Family) -> nn.Module:
    """The norm that these weights ask for."""
    width = weights[f"{name}.w"].shape[0]
    if family.rmsnorm:
        return RMSNorm(width, family.eps)
    return Norm(width, f"{name}.b" in weights, family.eps)


class ReferenceGPT(nn.Module):
    """GPT-2's architecture or another family's, with a copy of the given weights.

    Sizes are read off the weights, and whether there are biases, positions and a norm behind the
    embedding; the number of heads cannot be. The classifier is tied to the token embedding unless
    there is a `head.w`. `gelu` is "tanh" or "none" (exact, by erf).
    """

    def __init__(
        self, weights: Weights, *, heads: int, gelu: str = "tanh", family: Family = GPT2
    ) -> None:
        super().__init__()
        vocab, hidden = weights["embed.w"].shape
        self.family = family
        numbered = {name.partition(".")[0] for name in weights if name[1:2].isdigit()}
        self.layers = len(numbered) - family.depths.held * family.depths.layers
        self.embed = Table(vocab, hidden)
        self.drop = Dropout(family.dropout, "embed")
        if "embed.norm.w" in weights:
            self.embed.norm = norm_of(weights, "embed.norm", family)
        if "position.w" in weights:
            self.position = Table(weights["position.w"].shape[0], hidden)
        for i in range(len(numbered)):
            self.add_module(f"l{i}", Layer(weights, f"l{i}", heads, gelu, family))
        for name in reference_further.norms(self.layers, family.depths):
            layer, _, norm = name.partition(".")
            self.get_submodule(layer).add_module(norm, norm_of(weights, name, family))
        for name, shape in reference_further.shapes(self.layers, hidden, family.depths):
            self.get_submodule(name.partition(".")[0]).eh_proj = Linear(
                shape[0], shape[1], bias=False
            )
        self.norm = norm_of(weights, "norm", family)
        self.head = Table(vocab, hidden)
        if "head.w" not in weights:
            self.head.w = self.embed.w
        self.to(weights["embed.w"].dtype)
        named = {_inside(name): value for name, value in weights.items()}
        self.load_state_dict({**named, "head.w": weights.get("head.w", weights["embed.w"])})

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, sequence, vocab) of tokens (batch, sequence)."""
        x = F.embedding(tokens, self.embed.w)
        if hasattr(self, "position"):
            x = x + self.position.w[: tokens.shape[1]]
        if hasattr(self.embed, "norm"):
            x = self.embed.norm(x)
        x = self.drop(x)
        for i in range(self.layers):
            x = self.get_submodule(f"l{i}")(x)
        self.stream = x
        return self.norm(x) @ self.head.w.T

    def depth(self, number: int, stream: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The stream behind a depth that predicts a further token, and its logits."""
        first = self.layers + number * self.family.depths.layers
        own = [self.get_submodule(f"l{first + i}") for i in range(self.family.depths.layers)]
        embedded = own[0].enorm(F.embedding(tokens, self.embed.w))
        x = own[0].eh_proj(torch.cat([embedded, own[0].hnorm(stream)], dim=-1))
        for layer in own:
            x = layer(x)
        return x, own[-1].head_norm(x) @ self.head.w.T

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over all tokens of the batch, or over those that Goldfish keeps."""
        family = self.family
        if family.goldfish_k:
            targets = without_dropped(targets, family.goldfish_k, family.goldfish_h)
        for mixture in self.mixtures:
            mixture.forget()
        logits = self(tokens).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)
        if family.depths.count:
            further = reference_further.loss(family.depths, self.depth, self.stream, targets)
            loss = loss + family.depths.weight * further
        return loss + sum(family.balance_loss * each.balance for each in self.mixtures)

    @property
    def mixtures(self) -> list[reference_experts.Experts]:
        """The experts of all layers."""
        return [each for each in self.modules() if isinstance(each, reference_experts.Experts)]

    def copy_of_weights(self) -> dict[str, Tensor]:
        """The weights as they are now; a tied classifier appears as `embed.w` alone."""
        every = self.named_parameters()
        return {_outside(name): p.detach().clone() for name, p in every}


def _outside(name: str) -> str:
    """A weight's name from that in the modules."""
    for module in ("mixture.", "way.", "mixer."):
        name = name.replace(module, "")
    return name


OF_MAMBA = ("in_proj.", "conv.", "decay.", "skip.", "step.", "ssd_norm.", "out_proj.")


def _inside(name: str) -> str:
    """A weight's name in the modules, which keep what belongs to experts apart, and what leads to
    the core of latent attention."""
    layer, _, rest = name.partition(".")
    if rest.startswith(("q_", "kv_")):
        return f"{layer}.way.{rest}"
    if rest.startswith(OF_MAMBA):
        return f"{layer}.mixer.{rest}"
    inside = rest.startswith(("router.", "experts.", "shared.", "fc1_latent", "fc2_latent"))
    return f"{layer}.mixture.{rest}" if inside else name


def initial_weights(
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    sequence: int,
    vocab: int,
    tied: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    kv_heads: int = 0,
    head_width: int = 0,
    gated: bool = False,
    biases: bool = True,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    sinks: bool = False,
    output_gate: bool = False,
    router_bias: bool = False,
    norm_biases: bool = True,
    positions: bool = True,
    embedding_norm: bool = False,
    experts: int = 0,
    expert_ffn: int = 0,
    shared_ffn: int = 0,
    expert_latent: int = 0,
    routed: Sequence[int] = (),
    q_rank: int = 0,
    kv_rank: int = 0,
    rope_width: int = 0,
    value_width: int = 0,
    depths: reference_further.Depths = NO_DEPTHS,
    pattern: str = "",
    mamba: reference_hybrid.Sizes = NO_MAMBA,
) -> dict[str, Tensor]:
    """Random weights, the biases and norms among them, so that no error hides behind a 0 or a 1.

    `kv_heads` and `head_width` are `heads` and hidden / heads if 0; `gated` doubles `up`. Layers
    named in `routed` have experts. With `kv_rank` the attention is latent.
    """
    assert head_width or hidden % heads == 0, f"heads={heads} does not divide hidden={hidden}"
    width = head_width or hidden // heads
    columns = ((2 if output_gate else 1) * heads + 2 * (kv_heads or heads)) * width
    linears = {} if kv_rank else {"qkv": (hidden, columns)}
    linears |= {"out": (heads * (value_width or width), hidden)}
    linears |= {"up": (hidden, 2 * ffn if gated else ffn), "down": (ffn, hidden)}
    shapes: dict[str, tuple[int, ...]] = {"embed.w": (vocab, hidden)}
    shapes |= dict(reference_further.shapes(layers, hidden, depths))
    for name in reference_further.norms(layers, depths):
        shapes |= dict(_norm(name, hidden, norm_biases))
    shapes |= {"position.w": (sequence, hidden)} if positions else {}
    shapes |= dict(_norm("embed.norm", hidden, norm_biases)) if embedding_norm else {}
    for i in range(layers + depths.held * depths.layers):
        own = linears
        if i in routed:
            own = {name: linears[name] for name in linears if name not in ("up", "down")}
            sizes = hidden, experts, expert_ffn, shared_ffn, gated
            shapes |= reference_experts.shapes(
                f"l{i}", *sizes, biases=biases, correction=router_bias, latent=expert_latent
            )
        if kv_rank:
            shapes |= reference_latent.shapes(
                f"l{i}",
                hidden,
                heads,
                q_rank=q_rank,
                kv_rank=kv_rank,
                head_width=width,
                rope_width=rope_width,
                value_width=value_width or width,
            )
        if pattern:
            own_shapes = reference_hybrid.mixer_shapes(f"l{i}", pattern[i], hidden, linears, mamba)
            shapes |= dict(own_shapes)
            normed = pattern[i] == "*" and qk_norm
            shapes |= {f"l{i}.{norm}.w": (width,) for norm in ("qnorm", "knorm") if normed}
            continue
        shapes |= dict(_layer(f"l{i}", own, biases, norm_biases))
        shapes |= {f"l{i}.qkv.b": linears["qkv"][1:]} if qkv_bias else {}
        shapes |= {f"l{i}.sinks.w": (heads,)} if sinks else {}
        shapes |= {f"l{i}.{norm}.w": (width,) for norm in ("qnorm", "knorm") if qk_norm}
    shapes |= dict(_norm("norm", hidden, norm_biases))
    shapes |= {} if tied else {"head.w": (vocab, hidden)}
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        is_norm_weight = "norm" in name and name.endswith(".w")
        weights[name] = (1 + 0.1 * normal if is_norm_weight else 0.02 * normal).to(dtype)
        if name.endswith(("conv.w", "decay.w", "skip.w", "step.w")):
            weights[name] = (0.5 * normal).to(dtype)
    return weights


Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _layer(
    layer: str, linears: Mapping[str, tuple[int, int]], biases: bool, norm_biases: bool
) -> Shapes:
    for norm in ("norm1", "norm2"):
        yield from _norm(f"{layer}.{norm}", linears["out"][1], norm_biases)
    for linear, shape in linears.items():
        yield f"{layer}.{linear}.w", shape
        if biases:
            yield f"{layer}.{linear}.b", shape[1:]


def _norm(name: str, hidden: int, bias: bool) -> Shapes:
    yield f"{name}.w", (hidden,)
    if bias:
        yield f"{name}.b", (hidden,)


def loss_and_gradients(
    weights: Weights, batch: Batch, *, heads: int, gelu: str = "tanh", family: Family = GPT2
) -> tuple[float, dict[str, Tensor]]:
    """The loss of one batch and its gradient in every weight, neither clipped nor applied."""
    model = ReferenceGPT(weights, heads=heads, gelu=gelu, family=family)
    loss = model.loss(*batch)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def train(
    weights: Weights,
    batches: Sequence[Batch],
    *,
    heads: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    clip: float | None = 1.0,
    gelu: str = "tanh",
    family: Family = GPT2,
) -> Trained:
    """One AdamW step per global batch.

    A batch is (tokens, targets), each (sequences, sequence). Every parameter of two dimensions
    decays, tables included; biases and norms do not. Gradients are scaled by
    min(1, clip / (global norm + 1e-6)). The given weights stay as they are.
    """
    model = ReferenceGPT(weights, heads=heads, gelu=gelu, family=family)
    parameters = [p for p in model.parameters() if p.requires_grad]
    decays = {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay}
    others = {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}
    adamw = torch.optim.AdamW([decays, others], lr=lr, betas=betas, eps=eps, foreach=False)
    losses, norms = [], []
    drops = [module for module in model.modules() if isinstance(module, Dropout)]
    for step, (tokens, targets) in enumerate(batches, start=1):
        adamw.zero_grad()
        for drop in drops:
            drop.step = step
        loss = model.loss(tokens, targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, math.inf if clip is None else clip)
        adamw.step()
        for mixture in model.mixtures:
            mixture.move(family.router_bias_rate)
        losses.append(loss.item())
        norms.append(norm.item())
    return Trained(losses, norms, model.copy_of_weights())
