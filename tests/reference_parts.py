"""The plain reference's modules with parameters: a linear, a LayerNorm, a table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """y = x @ w + b, or x @ w."""

    def __init__(self, rows: int, columns: int, bias: bool) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(rows, columns))
        self.b = nn.Parameter(torch.empty(columns)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w if self.b is None else x @ self.w + self.b


class Norm(nn.Module):
    """LayerNorm over the last dimension, with a bias or without."""

    def __init__(self, width: int, bias: bool, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.w = nn.Parameter(torch.empty(width))
        self.b = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.w.shape, self.w, self.b, eps=self.eps)


class Table(nn.Module):
    """One row of `width` numbers for each of `rows` tokens or positions."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(rows, width))
