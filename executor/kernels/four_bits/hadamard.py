"""The random Hadamard transform of 16 rows, which spreads outliers before both operands of a
weight's gradient are cast.

Each 16 rows of a matrix become H D of them over 4, with D the signs and H the Hadamard matrix of
Sylvester's construction. That is orthogonal, so the product of two matrices turned alike is as
before. Source: NVIDIA (2509.25149), section 4.2, of 16 rows and one vector of signs for all
linears and steps; the signs are those of NVIDIA Transformer Engine (`get_wgrad_sign_vector`).
"""

from __future__ import annotations

import torch

SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
ROWS = len(SIGNS)


def turned(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix of a multiple of 16 rows, turned."""
    turn = _turn(matrix)
    return (turn @ matrix.reshape(-1, ROWS, matrix.shape[1])).view(matrix.shape)


def _turn(like: torch.Tensor) -> torch.Tensor:
    whole = like.new_ones(1, 1)
    while len(whole) < ROWS:
        whole = torch.cat([torch.cat([whole, whole], 1), torch.cat([whole, -whole], 1)])
    signs = torch.tensor(SIGNS, dtype=like.dtype).to(like.device)
    return whole.mul(signs).div(float(ROWS) ** 0.5)
