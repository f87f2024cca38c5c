"""How one parameter of a program lies in the tensors that it is published as."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from topologies.records import record

Shape = tuple[int, ...]


@record
class Published:
    """Where a parameter is published: names and shapes of the tensors that stand side by side in
    its last dimension, each turned if `transposed`. With `longer` a file's tensor may have more
    rows, of which the first are taken. With `experts` so many matrices lie behind one another in
    the parameter's first dimension, and the tensors are those of the first, of the second, …
    `columns` says which of the tensors' columns side by side each of the parameter's is, if their
    order differs. `zeros` are names and shapes of tensors that stand beside in files, which may
    hold nothing but zeros.
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    transposed: bool = False
    longer: bool = False
    experts: int = 0
    columns: tuple[int, ...] = ()
    zeros: tuple[tuple[str, Shape], ...] = ()

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all tensors in files, those of zeros too."""
        return (*self.names, *(name for name, _ in self.zeros))

    @property
    def beside(self) -> int:
        """How many tensors stand side by side."""
        return len(self.names) // (self.experts or 1)


def joined(tensors: list[torch.Tensor], where: Published) -> torch.Tensor:
    """The whole parameter of its tensors."""
    turned = [t.t() if where.transposed else t for t in tensors]
    rows = range(0, len(turned), where.beside)
    each = [torch.cat(turned[i : i + where.beside], -1) for i in rows]
    whole = torch.stack(each) if where.experts else each[0]
    if where.columns:
        whole = whole[..., torch.tensor(where.columns)]
    return whole[: where.shapes[0][0]] if where.longer else whole


def parted(whole: torch.Tensor, where: Published) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, by name, that a whole parameter is published as."""
    shapes = where.shapes[: where.beside]
    widths = [shape[0 if where.transposed else -1] for shape in shapes]
    if where.columns:
        whole = whole[..., torch.tensor(where.columns).argsort()]
    matrices = whole if where.experts else [whole]
    parts = [part for each in matrices for part in each.split_with_sizes(widths, -1)]
    for name, part in zip(where.names, parts, strict=True):
        yield name, (part.t() if where.transposed else part).contiguous()
    for name, shape in where.zeros:
        yield name, whole.new_zeros(shape)
