"""Primitives that are known and have no counterpart, and why."""

from __future__ import annotations

from espalier.jax.registry import REFUSED

_REASONS = {
    "there is no operator of linear algebra beyond products": """
        cholesky eig eigh lu lu_pivots_to_permutation qr householder_product svd schur triangular_solve tridiagonal
        tridiagonal_solve hessenberg custom_linear_solve""",
    "it appears in derivatives; a loss that contains gradients of its own is not converted": """
        select_and_scatter_add select_and_gather_add""",
    "the graph is of the whole batch; leave collectives out": """
        psum pmean pmax pmin all_gather all_to_all ppermute axis_index psum_scatter""",
    "there is no operator for it": """
        fft lgamma digamma igamma igammac random_gamma atan2 real imag complex conj""",
    "only sums are accumulated along an axis": "cumprod cummax cummin cumlogsumexp",
    "of a function of one's own; maximum, minimum and sum are converted": "reduce_window reduce",
    "it calls code of the host": "pure_callback io_callback ffi_call custom_call",
}
REFUSED.update({name: reason for reason, names in _REASONS.items() for name in names.split()})
