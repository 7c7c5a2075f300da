"""The three products of a linear layer, by the number of classes, in pieces of whole widths, as linear_loss makes them.

    python benchmarks/products.py [--shape 8192,512,21841] [--device cuda] [--seconds 0.2]

The peer of each, in the same run, is one call of torch.mm for the whole product, with its logits in contiguous memory.
Times are medians over turns, in bfloat16 on a GPU and float32 on a CPU. A ratio below 1 says that pieces take less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from common import describe_machine
from lastlayer._core.timing import seconds_of_both
from lastlayer.linear_loss.layer import Layer
from lastlayer.linear_loss.products import input_gradient, put_product

SHAPES = {
    "cuda": [(4096, 2048, 50257), (8192, 512, 21840), (8192, 512, 21841), (8192, 512, 21842), (8192, 512, 21844)],
    "cpu": [(2048, 512, 21841)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", help="N,d,K instead of the list")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="cuda if there is one, else cpu")
    parser.add_argument("--seconds", type=float, default=0.2, help="how long to time each pair")
    options = parser.parse_args()
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    shapes = [tuple(map(int, options.shape.split(",")))] if options.shape else SHAPES[device]
    console = Console(width=100)
    console.print(describe_machine())
    table = Table("N, d, K", "product", "ms", "torch.mm, ms", "ratio")
    for shape in shapes:
        for name, (step, peer) in products(*shape, device=device).items():
            mine, theirs = seconds_of_both(step, peer, device, options.seconds)
            table.add_row(
                ", ".join(map(str, shape)), name, f"{1e3 * mine:.3f}", f"{1e3 * theirs:.3f}", f"{mine / theirs:.2f}"
            )
    console.print(table)


def products(N: int, d: int, K: int, device: str) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Each product: in pieces, and in one call."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    features, weight = (torch.randn(rows, d, device=device, dtype=dtype) for rows in (N, K))
    layer = Layer(features, weight, None)
    apart, together = layer.room(N), torch.empty(N, K, device=device, dtype=dtype)
    of_features, of_weight = torch.empty_like(features), torch.empty_like(weight)
    return {
        "logits": (
            lambda: layer.put_logits(apart, 0, N),
            lambda: torch.mm(features, weight.T, out=together),
        ),
        "gradient of the features": (
            lambda: input_gradient(apart, weight, out=of_features),
            lambda: torch.mm(together, weight, out=of_features),
        ),
        "gradient of the weight": (
            lambda: put_product(of_weight, apart, features),
            lambda: torch.mm(together.T, features, out=of_weight),
        ),
    }


if __name__ == "__main__":
    main()
