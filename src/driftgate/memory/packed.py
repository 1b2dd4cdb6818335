"""Symmetric matrices kept by wrapped diagonals, each entry once.

Shapes: N samples, C matrices, R rows, P = R(R+1)/2 different entries of a symmetric matrix.

Entry (k, i) is A[i, (i + k) mod R] for k = 0 .. R // 2, so the first R entries are the main diagonal. In this order the
products x_i x_j of a vector with itself come from two views of it, without the gathers that a triangle kept row by row
costs. For even R the second half of the last diagonal repeats the first; it stands at the end, and what is stored
leaves it out.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from driftgate.memory.blocks import blocks


def packed_size(dim: int) -> int:
    """Number of different entries of a symmetric dim x dim matrix."""
    return dim * (dim + 1) // 2


@lru_cache(maxsize=16)
def lower_positions(dim: int, device: torch.device) -> Tensor:
    """(P,) where each packed entry stands in the lower triangle of a flattened dim x dim matrix."""
    diagonal, row = torch.arange(packed_size(dim)).div(dim, rounding_mode="floor"), torch.arange(packed_size(dim)) % dim
    column = (row + diagonal) % dim
    return (torch.maximum(row, column) * dim + torch.minimum(row, column)).to(device)


def pack(matrices: Tensor) -> Tensor:
    """(C, R, R) symmetric, of which the lower triangle is read -> (C, P): by wrapped diagonals."""
    return matrices.flatten(1)[:, lower_positions(matrices.shape[1], matrices.device)]


def unpack_lower(packed: Tensor, dim: int) -> Tensor:
    """(C, P) -> (C, R, R): lower triangular, zeros above the diagonal."""
    lower = packed.new_zeros(len(packed), dim * dim)
    return lower.scatter_(1, lower_positions(dim, packed.device).expand(len(packed), -1), packed).view(-1, dim, dim)


def wrap(vectors: Tensor) -> Tensor:
    """(M, R) -> (M, R // 2 + 1, R) view: entry (k, i) is ``vectors[:, (i + k) % R]``."""
    dim = vectors.shape[1]
    return torch.cat([vectors, vectors[:, : dim // 2]], dim=1).unfold(1, dim, 1)


def wrapped_diagonals(matrix: Tensor) -> Tensor:
    """(R, R) symmetric -> (R // 2 + 1, R) view: entry (k, i) is ``matrix[i, (i + k) % R]``."""
    return wrap(matrix).diagonal(dim1=0, dim2=2)


def plus_symmetric_outer(target: Tensor, left: Tensor, right: Tensor, times: float = 1.0) -> Tensor:
    """``target + times * (left right^T + right left^T)`` of every row.

    ``left`` and ``right`` are (C, R), ``target`` is (C, R // 2 + 1, R) by wrapped diagonals, or (1, R // 2 + 1, R): one
    matrix takes the sum over all rows, which is a matrix product.
    """
    if len(target) == len(left):
        added = torch.addcmul(target, left[:, None], wrap(right), value=times)
        return added.addcmul_(right[:, None], wrap(left), value=times)
    summed = left.T @ right
    return torch.add(target, wrapped_diagonals(summed + summed.T), alpha=times)


def class_seconds(centered: Tensor, per_class: Tensor) -> Tensor:
    """(N, R), (C, N) -> (C, R // 2 + 1, R): the weighted sum of outer products of every class."""
    wrapped = wrap(centered)
    second = centered.new_empty(len(per_class), *wrapped.shape[1:])
    # Twice the products: the matrix product makes a copy.
    for part in blocks(wrapped.shape[1], 2 * centered.numel(), centered.device):
        products = (centered[:, None] * wrapped[:, part]).flatten(1)
        second[:, part] = (per_class @ products).view(len(per_class), -1, centered.shape[1])
    return second


def pooled_second(centered: Tensor, per_class: Tensor) -> Tensor:
    """(N, R), (C, N) -> (1, R // 2 + 1, R): the same summed over the classes; only a sample's whole weight counts."""
    return wrapped_diagonals((centered.T * per_class.sum(dim=0)) @ centered)[None]
