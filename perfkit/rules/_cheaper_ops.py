"""Ops that cost far more than what their result is mostly wanted for, and what to call instead."""

from __future__ import annotations

import re

#: Outermost op -> what to call instead.
_INSTEAD = tuple(
    (re.compile(rf"(?:aten::)?(?:{ops})"), advice)
    for ops, advice in (
        (
            r"linalg_svd\w*|svd|svdvals|linalg_matrix_norm|nuclear_norm|linalg_pinv|pinv|linalg_matrix_rank|linalg_cond",
            "Compute only the values that are needed: a power iteration for the largest one (spectral_norm), "
            "torch.svd_lowrank for a few; or decompose every N steps.",
        ),
        (
            r"linalg_eig\w*|eigh|eigvalsh|linalg_matrix_exp|linalg_qr|linalg_det|linalg_slogdet|logdet",
            "Decompose every N steps and keep the result, or decompose a smaller matrix: torch.lobpcg finds a few "
            "values, a Cholesky factor has the determinant of a positive definite matrix.",
        ),
        (r"linalg_inv\w*|inverse", "Use torch.linalg.solve, or a factor that is computed once, instead of an inverse."),
        (r"argsort|sort|msort", "Use topk where the first few are needed; sort once where the data does not change."),
        (
            r"unique\w*|_unique2",
            "Use torch.bincount where the values are small whole numbers; compute it once where they do not change.",
        ),
        (
            r"randperm",
            "Draw as many as are needed: torch.randint, or one permutation per epoch that is used part by part.",
        ),
        (
            r"multinomial",
            "Draw by torch.searchsorted in the cumulative sum of the weights (perfkit explain dominating-op), or first "
            "keep the few that can be drawn (topk): multinomial makes a random number for each element.",
        ),
    )
)


def cheaper_than(name: str) -> str | None:
    """What to call instead of an op (``aten::argsort``) or a function of torch; None: nothing is known."""
    return next((text for ops, text in _INSTEAD if ops.fullmatch(name)), None)
