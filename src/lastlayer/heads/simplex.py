"""The simplex equiangular tight frame, and a head that uses it as a fixed classifier."""

import torch
from torch import Tensor

from lastlayer.heads.head import Head, register, select


def simplex_etf(num_classes: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """A simplex equiangular tight frame: K unit vectors in a random orientation, each two with cosine -1 / (K - 1).

        M M' = K / (K - 1) (I - 11'/K)

    Args:
        num_classes: K >= 2.
        dim: d >= K - 1.
        generator: the random generator for the orientation. None uses torch's global one.

    Returns:
        M, (K, d), with rows of unit norm. Computed in float64, returned in torch's default dtype.

    Paper: Papyan et al. 2020.
    Tests: tests/heads/test_simplex.py::test_gram_matrix

    Example:
        >>> M = simplex_etf(3, 2)
        >>> M @ M.T
        tensor([[ 1.0000, -0.5000, -0.5000],
                [-0.5000,  1.0000, -0.5000],
                [-0.5000, -0.5000,  1.0000]])
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    if dim < num_classes - 1:
        raise ValueError(f"a simplex of {num_classes} classes needs dim >= {num_classes - 1}, got {dim}")
    # Helmert's basis of the vectors that sum to zero: column i is (1, ..., 1, -i, 0, ...) / sqrt(i (i + 1)).
    i = torch.arange(1, num_classes, dtype=torch.float64)
    basis = torch.triu(torch.ones(num_classes, num_classes - 1, dtype=torch.float64))
    basis[1:] -= torch.diag(i)
    basis = basis / (i * (i + 1)).sqrt()  # (K, K - 1), basis basis' = I - 11'/K
    gaussian = torch.randn(dim, num_classes - 1, dtype=torch.float64, generator=generator)
    frame, triangle = torch.linalg.qr(gaussian)
    frame = frame * triangle.diagonal().sign()  # without this the orientation would not be uniform
    rows: Tensor = (num_classes / (num_classes - 1)) ** 0.5 * basis @ frame.T
    return rows.to(torch.get_default_dtype())


@register("simplex")
class SimplexHead(Head):
    """A classifier that is fixed to a simplex frame M, so that the last layer has nothing to learn.

        logits = scale M h

    Args:
        in_features: d >= num_classes - 1.
        num_classes: K >= 2.
        scale: factor on the rows, which have unit norm. None is 1.
        generator: as in `simplex_etf`. The frame is saved in the state_dict.

    Paper: Papyan et al. 2020, the frame; none for fixing it.
    Tests: tests/heads/test_head.py::test_logits

    Example:
        >>> import torch
        >>> head = SimplexHead(9, 10)
        >>> sum(p.numel() for p in head.parameters())
        0
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        scale: float | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(in_features, num_classes)
        if scale is not None and not scale > 0:
            raise ValueError(f"scale must be positive or None, got {scale!r}")
        self.scale = scale
        self.register_buffer("weight", simplex_etf(num_classes, in_features, generator))
        self.bias = None

    def linear(self, classes: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The weight, scale times the frame's rows, and no bias."""
        rows = select(self.weight, classes)
        return rows if self.scale is None else self.scale * rows, None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale}"
