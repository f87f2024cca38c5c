"""Muon: the momentum of a matrix, made orthogonal by Newton-Schulz iterations, is its update.

The weights of the layers' linears are such matrices; queries, keys and values, keys and values of
latent attention, and gate and up are one each, and so are those of each expert. Tables, positions,
routers, norms and biases are AdamW's. An iteration is
X <- a X + (b A + c A^2) X with A = X X^T, X having fewer rows than columns; it wants the whole
matrix, so the parts of the momentum are gathered over all axes that split a weight, every rank that
has a part does the same iterations, and takes its part of the result. Matrices of the experts that
a rank holds are multiplied together, as a stack. Updates are scaled so that
their mean square is that of AdamW's, and learning rate and decay are AdamW's as well.

Letters: X is s x l with s <= l; a step of five iterations is 5 (4 s^2 l + 2 s^3) FLOPs.
Source: Jordan et al., github.com/KellerJordan/Muon (iteration, coefficients, momentum, separate
queries, keys and values); Liu et al., Muon is Scalable for LLM Training (2502.16982), sections 2.2
(scale of updates) and 2.3 (gathered matrices, in the compute precision).
Not modelled: iterations shared out over ranks instead of repeated, gathers beside compute.
"""

from __future__ import annotations

from workload.rules import adamw
from workload.rules.rule import Update, UpdateRule

MOMENTUM = 0.95  # Nesterov's
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPS = 1e-7  # the least norm by which a matrix is divided
OF_EXPERTS = 3  # dimensions of their weights
STACKED = "stacked_matmul"  # of two stacks of as many matrices
RMS = 0.2  # of AdamW's updates; an orthogonal n x m matrix has 1 / sqrt(max(n, m))

UPDATE = Update("muon", ("momentum",))
RULE = UpdateRule(
    name="muon",
    words="orthogonal momentum of matrices, AdamW of everything else",
    source="github.com/KellerJordan/Muon; Liu et al., Muon is Scalable (2502.16982)",
    matrices=UPDATE,
    others=adamw.UPDATE,
)
