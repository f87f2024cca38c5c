"""The scan of a Mamba-2 layer in chunks of tokens, with its gate, and its gradients.

Letters: a chunk has Q tokens, i and j are two of them; a group has r heads of width P, and N
numbers of a state. Of a head, a is its decay's rate, below 0, and dt_i a token's step. With

    state_i = exp(a dt_i) state_{i-1} + dt_i x_i B_i^T,    y_i = state_i C_i + D x_i

and l_i the sum of a dt over a chunk's tokens up to i, the outputs of a chunk that the state S comes
into are y_i = exp(l_i) S C_i + sum over j <= i of exp(l_i - l_j) dt_j (C_i . B_j) x_j + D x_i, and
the state that leaves it is exp(l_Q) S + sum over j of exp(l_Q - l_j) dt_j x_j B_j^T.
Source: Dao and Gu, Mamba-2 (2405.21060), section 6, listing 1. Sums are in wide precision; one
group of one sequence is worked on at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from executor.kernels.attentions.heads import add_to_heads, own_heads
from executor.kernels.slices import wide_dtype
from executor.rank_context import RankContext
from topologies.records import record
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def ssd(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The outputs of all tokens, and the same times SiLU of z."""
    convolved, made = reads[:2]
    decay, skip, step = (own_heads(op, each, at) for each in reads[2:])
    for own in _groups(op, convolved, made):
        part = own.group
        heads = _Heads.of(own, made, decay, skip, step)
        state = torch.zeros(_state_shape(op), dtype=heads.rates.dtype, device=made.device)
        for rows in own.chunks():
            chunk = _Chunk.of(own, heads, convolved, rows)
            y = chunk.outputs(state) + heads.skip[:, None, None] * chunk.x
            state = chunk.leaving(state)
            _heads_of(op, writes[0], part, rows).copy_(y.transpose(0, 1))
            gate = _heads_of(op, made, part, rows).transpose(0, 1).to(y.dtype)
            _heads_of(op, writes[1], part, rows).copy_((y * F.silu(gate)).transpose(0, 1))


def ssd_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradients of x, B and C, side by side; of z and dt, in their places of the fused tensor; and
    of the heads' decays, skips and biases of steps."""
    grad, convolved, made, scanned = reads[:4]
    decay, skip, step = (own_heads(op, each, at) for each in reads[4:7])
    wide = wide_dtype(made)
    totals = [torch.zeros_like(each, dtype=wide) for each in (decay, skip, step)]
    for own in _groups(op, convolved, made):
        heads = _Heads.of(own, made, decay, skip, step)
        states = list(_entering(op, own, heads, convolved))
        d_state = torch.zeros_like(states[0])
        for rows, state in zip(reversed(own.chunks()), reversed(states), strict=True):
            chunk = _Chunk.of(own, heads, convolved, rows)
            y_grad = _through_gate(op, own, rows, (grad, made, scanned), writes[1])
            found = chunk.gradients(state, d_state, y_grad)
            d_state = found.state
            own_x = found.x + heads.skip[:, None, None] * y_grad
            _x_of(op, writes[0], own.group, rows).copy_(own_x.transpose(0, 1))
            for band, d in enumerate((found.b, found.c)):
                _states_of(op, writes[0], own.group, rows, band).copy_(d)
            sums = found.exponents.flip(1).cumsum(1).flip(1)  # of a dt of each token
            totals[0][own.heads] += (sums * chunk.steps).sum(1) * heads.rates
            totals[1][own.heads] += (y_grad * chunk.x).sum((1, 2))
            raw = (found.steps + sums * heads.rates[:, None]) * heads.slopes[:, own.local(rows)]
            totals[2][own.heads] += raw.sum(1)
            _steps_of(op, writes[1], own, rows).copy_(raw.T)
    for of_tile, total in zip(writes[2:], totals, strict=True):
        add_to_heads(op, of_tile, total, at)


def _entering(
    op: Op, own: _Group, heads: _Heads, convolved: torch.Tensor
) -> Iterator[torch.Tensor]:
    """The states that come into the chunks."""
    shape = _state_shape(op)
    state = torch.zeros(shape, dtype=heads.rates.dtype, device=convolved.device)
    for rows in own.chunks():
        yield state
        state = _Chunk.of(own, heads, convolved, rows).leaving(state)


def _through_gate(
    op: Op, own: _Group, rows: slice, tensors: tuple[torch.Tensor, ...], fused: torch.Tensor
) -> torch.Tensor:
    """The gradient of a chunk's outputs before the gate; that of z goes to its place."""
    grad, made, scanned = (_heads_of(op, each, own.group, rows).transpose(0, 1) for each in tensors)
    wide = grad.to(wide_dtype(grad))
    gate = made.to(wide.dtype)
    curve = gate.sigmoid()
    of_gate = wide * scanned * curve * (1 + gate * (1 - curve))
    _heads_of(op, fused, own.group, rows).copy_(of_gate.transpose(0, 1))
    return wide * gate * curve


@record(slots=False)
class _Group:
    """A group of heads of one sequence, by its number; `first` is the sequence's first row."""

    op: Op
    first: int
    group: int

    @property
    def heads(self) -> slice:
        """Its heads."""
        count = self.op.attributes["heads"] // self.op.attributes["groups"]
        return slice(self.group * count, (self.group + 1) * count)

    @property
    def rows(self) -> slice:
        """The sequence's rows."""
        return slice(self.first, self.first + self.op.attributes["sequence"])

    def chunks(self) -> list[slice]:
        """The rows of each chunk."""
        size, last = self.op.attributes["chunk"], self.rows.stop
        return [slice(at, min(at + size, last)) for at in range(self.first, last, size)]

    def local(self, rows: slice) -> slice:
        """Rows as places within the sequence."""
        return slice(rows.start - self.first, rows.stop - self.first)


def _groups(op: Op, convolved: torch.Tensor, made: torch.Tensor) -> Iterator[_Group]:
    for first in range(0, len(made), op.attributes["sequence"]):
        for group in range(op.attributes["groups"]):
            yield _Group(op, first, group)


@record(slots=False)
class _Heads:
    """The heads of a group: rates a (r), skips D (r), and of each token of a sequence steps dt
    (r, tokens) with their slopes over what softplus had."""

    rates: torch.Tensor
    skip: torch.Tensor
    steps: torch.Tensor
    slopes: torch.Tensor

    @staticmethod
    def of(own: _Group, made: torch.Tensor, *weights: torch.Tensor) -> _Heads:
        wide = wide_dtype(made)
        decay, skip, step = (each[own.heads].to(wide) for each in weights)
        raw = _steps_of(own.op, made, own, own.rows).to(wide).T + step[:, None]
        return _Heads(-decay.exp(), skip, F.softplus(raw), raw.sigmoid())


@record(slots=False)
class _Gradients:
    """Of a chunk: of the state that comes in, of x, B and C, of the sums l, and of steps, those
    through l left out."""

    state: torch.Tensor
    x: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    exponents: torch.Tensor
    steps: torch.Tensor


@record(slots=False)
class _Chunk:
    """A chunk of a group: x (r, Q, P), B and C (Q, N), dt and the sums l (r, Q), exp(l_i - l_j) for
    j up to i and 0 behind it (r, i, j), and C_i . B_j (i, j)."""

    x: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    steps: torch.Tensor
    sums: torch.Tensor
    decays: torch.Tensor
    products: torch.Tensor

    @staticmethod
    def of(own: _Group, heads: _Heads, convolved: torch.Tensor, rows: slice) -> _Chunk:
        op, wide = own.op, heads.rates.dtype
        x = _x_of(op, convolved, own.group, rows).transpose(0, 1).to(wide)
        b, c = (_states_of(op, convolved, own.group, rows, band).to(wide) for band in (0, 1))
        steps = heads.steps[:, own.local(rows)]
        sums = (steps * heads.rates[:, None]).cumsum(1)
        later = torch.ones(len(b), len(b), dtype=torch.bool, device=b.device).triu(1)
        apart = (sums[:, :, None] - sums[:, None]).masked_fill(later, float("-inf"))
        return _Chunk(x, b, c, steps, sums, apart.exp(), c @ b.T)

    @property
    def to_end(self) -> torch.Tensor:
        """exp(l_Q - l_j)."""
        return (self.sums[:, -1:] - self.sums).exp()

    def outputs(self, state: torch.Tensor) -> torch.Tensor:
        """y without the skip, (r, Q, P), given the state that comes in, (r, P, N)."""
        mixed = self.decays * self.products * self.steps[:, None]
        carried = self.c @ state.transpose(1, 2)
        return mixed @ self.x + self.sums.exp()[..., None] * carried

    def leaving(self, state: torch.Tensor) -> torch.Tensor:
        """The state that leaves the chunk."""
        weights = (self.to_end * self.steps)[..., None]
        made = (weights * self.x).transpose(1, 2) @ self.b
        return self.sums[:, -1].exp()[:, None, None] * state + made

    def gradients(
        self, state: torch.Tensor, d_state: torch.Tensor, d_y: torch.Tensor
    ) -> _Gradients:
        """Gradients from those of the state that leaves and of the outputs, the skip left out."""
        weights, end = self.decays * self.steps[:, None], self.to_end
        grown = self.sums.exp()
        pairs = d_y @ self.x.transpose(1, 2)  # dy_i . x_j
        of_products = (weights * pairs).sum(0)
        from_state = self.b @ d_state.transpose(1, 2)  # of what a token adds to the state
        shares = (self.x * from_state).sum(2) * end
        carried = self.c @ state.transpose(1, 2)
        flows = self.decays * self.products * pairs  # of dt_j, and times dt_j of l_i - l_j
        x = (weights * self.products).transpose(1, 2) @ d_y
        x += (end * self.steps)[..., None] * from_state
        scaled = grown[..., None] * d_y
        c = of_products @ self.b + (scaled @ state).sum(0)
        b = of_products.T @ self.c + (((end * self.steps)[..., None] * self.x) @ d_state).sum(0)
        exponents = (flows * self.steps[:, None]).sum(2) + (scaled * carried).sum(2)
        exponents -= flows.sum(1) * self.steps + shares * self.steps
        last = self.sums[:, -1].exp()
        exponents[:, -1] += (shares * self.steps).sum(1) + last * (d_state * state).sum((1, 2))
        d_in = last[:, None, None] * d_state + scaled.transpose(1, 2) @ self.c
        return _Gradients(d_in, x, b, c, exponents, flows.sum(1) + shares)


def _state_shape(op: Op) -> tuple[int, int, int]:
    heads = op.attributes["heads"] // op.attributes["groups"]
    return heads, op.attributes["width"], op.attributes["state"]


def _heads_of(op: Op, rows: torch.Tensor, group: int, part: slice) -> torch.Tensor:
    """A view (Q, r, P) of a group's heads, which stand at the beginning of each row."""
    heads, width, _ = _state_shape(op)
    own = rows[part, group * heads * width : (group + 1) * heads * width]
    return own.view(len(own), heads, width)


_x_of = _heads_of  # of convolved rows, where x stands first


def _states_of(op: Op, rows: torch.Tensor, group: int, part: slice, band: int) -> torch.Tensor:
    """A view (Q, N) of a group's B (band 0) or C (1) in convolved rows, behind x."""
    heads, groups, width, state = (op.attributes[k] for k in ("heads", "groups", "width", "state"))
    first = heads * width + (band * groups + group) * state
    return rows[part, first : first + state]


def _steps_of(op: Op, fused: torch.Tensor, own: _Group, part: slice) -> torch.Tensor:
    """A view (Q, r) of a group's dt, at the end of each row of the fused tensor."""
    first = fused.shape[1] - op.attributes["heads"]
    return fused[part, first + own.heads.start : first + own.heads.stop]
