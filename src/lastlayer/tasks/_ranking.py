"""The core of all rankings: how many scores reach a threshold, for many rankings at once, exact for ties.

Average precision, precision at recall, AUROC, OSCR and violated pairs are all integer counts of `score >= threshold` or
`score > threshold`. Only the last division is floating point. Scores are compared in their own dtype and never
transformed. The speed is measured by benchmarks/ranking.py.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32
from lastlayer.tasks.inputs import refuse_nan

_BUCKETS_PER_QUERY = 32
_BLOCK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 24}  # on a CPU, a larger block does not fit in the cache
_TILE_ROWS = 2048  # with more rows per tile, lines of a wide matrix leave the cache before they are fully used


class Ranking(NamedTuple):
    """Every positive as a threshold, sorted by class and then by ascending score. Ties have the same counts."""

    row: Tensor  # (Q,) the class, as an offset in the block
    true: Tensor  # (Q,) number of positives of the class with at least this score
    all: Tensor  # (Q,) number of samples with at least this score


def count_at_least(rows: Tensor, queries: Tensor, start: Tensor) -> Tensor:
    """For every query, how many entries of its row are greater or equal. Exact, in O(entries + queries).

    Sorting whole rows, or searching the queries for every entry, is slow because of mispredicted branches. Instead,
    entries and queries are put into buckets of equal width between the smallest and the largest query of the row.
    Subtraction, multiplication and truncation keep the order in floating point. So an entry in a higher bucket than a
    query is greater, and one in a lower bucket is smaller. Only entries in the same bucket as a query are compared with
    it. If the entries are spread unevenly, this takes longer, but the result stays exact.

    Args:
        rows: (B, N) contiguous, float32 or float64, no NaN.
        queries: (Q,) of the same dtype, ascending within each row's share.
        start: (B+1,) queries[start[b]:start[b+1]] belong to row b. Each row has at least one.

    Returns:
        (Q,) int64 counts.
    """
    num_rows, length = rows.shape
    limits = torch.finfo(rows.dtype)
    per_row = start.diff()
    # Bucket numbers above 2^23 would not be exact in float32.
    buckets = min(_BUCKETS_PER_QUERY * int(per_row.max()), max(length, 64), 1 << 23)
    low = queries[start[:-1]].clamp(limits.min, limits.max)  # (B,)
    high = queries[start[1:] - 1].clamp(limits.min, limits.max)
    # Halve, because high - low can overflow. Take abs, because -0.0 - 0.0 would make the scale negative. Keep the scale
    # finite, because 0 * inf is NaN.
    scale = (0.5 * buckets / (0.5 * high - 0.5 * low).abs()).clamp(max=limits.max)
    width = buckets + 3  # plus one below all queries, one for the rounding of the largest, one above all queries
    offset = torch.arange(num_rows, device=rows.device, dtype=torch.int32) * width

    def bucket(values: Tensor, low: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        position = (values - low).mul_(scale).add_(1).clamp_(0, buckets + 2)
        return position.to(torch.int32).add_(offset)

    row = torch.repeat_interleave(per_row)  # (Q,)
    entry_bucket = bucket(rows, low[:, None], scale[:, None], offset[:, None]).view(-1)  # (B*N,)
    query_bucket = bucket(queries, low[row], scale[row], offset[row])  # (Q,)

    reached = torch.bincount(entry_bucket, minlength=num_rows * width).view(num_rows, width).cumsum(1)
    higher = length - reached.view(-1)[query_bucket]  # (Q,) number of entries in higher buckets

    inside = torch.bincount(query_bucket, minlength=num_rows * width)  # number of queries in each bucket
    close = (inside > 0).index_select(0, entry_bucket).nonzero().squeeze(1)  # entries to compare one by one
    values, close_bucket = rows.view(-1)[close], entry_bucket[close]
    upper = inside.cumsum(0)[close_bucket]
    first = upper - inside[close_bucket]
    # An entry reaches the queries first..found-1 of its bucket. Bisection finds `found` for all entries together.
    found, last = first, queries.numel() - 1
    for _ in range(int(inside.max()).bit_length()):
        middle = (found + upper) >> 1
        open_ = found < upper
        reaches = queries[middle.clamp(max=last)] <= values
        found = torch.where(open_ & reaches, middle + 1, found)
        upper = torch.where(open_ & ~reaches, middle, upper)
    steps = torch.bincount(first, minlength=last + 2) - torch.bincount(found, minlength=last + 2)
    return higher + steps.cumsum(0)[:-1]


def rank_positives(columns: Tensor, target: Tensor) -> Ranking:
    """Rank the positives of every class of a block among all samples.

    Args:
        columns: (N, B) scores of B classes. NaN is refused in classes that have positives.
        target: (N,) the class of each row as an offset in the block. Other values belong to no class of the block.

    Returns:
        The ranking of the Q rows whose target lies in the block.
    """
    chosen = ((target >= 0) & (target < columns.shape[1])).nonzero().squeeze(1)
    row = target[chosen]
    score = at_least_float32(columns[chosen, row])
    order = score.argsort(stable=True)
    order = order[row[order].argsort(stable=True)]
    row, score = row[order], score[order]  # (Q,)
    if row.numel() == 0:
        return Ranking(row, row, row)

    present, dense, count = torch.unique_consecutive(row, return_inverse=True, return_counts=True)
    end = count.cumsum(0)
    start = torch.cat([end.new_zeros(1), end])
    rows = as_rows(columns, present)
    refuse_nan(rows, "logits")
    reached = count_at_least(rows, score, start)

    index = torch.arange(row.numel(), device=row.device)
    fresh = torch.ones_like(row, dtype=torch.bool)
    fresh[1:] = (score[1:] != score[:-1]) | (row[1:] != row[:-1])
    first_of_tie = torch.where(fresh, index, 0).cummax(0).values
    return Ranking(row, end[dense] - first_of_tie, reached)


def narrow_blocks(block: Tensor) -> Iterator[Tensor]:
    """Split an (N, B) block into narrower ones, to limit the memory."""
    elements = _BLOCK_ELEMENTS.get(block.device.type, _BLOCK_ELEMENTS["cpu"])
    yield from torch.split(block, max(1, elements // block.shape[0]), dim=1)


def average_precision(ranks: Ranking, num_classes: int) -> Tensor:
    """(K,) float64: the mean precision over the positives of a class. NaN for a class without positives."""
    total = torch.zeros(num_classes, dtype=torch.float64, device=ranks.row.device)
    total.index_add_(0, ranks.row, ranks.true.double() / ranks.all)
    return total / torch.bincount(ranks.row, minlength=num_classes)


def precision_at_recall(ranks: Ranking, num_classes: int, recall: float) -> Tensor:
    """(K,) float64: the best precision at this recall or more. NaN for a class without positives."""
    positives = torch.bincount(ranks.row, minlength=num_classes)
    allowed = ranks.true >= true_positives_needed(positives, recall)[ranks.row]
    precision = torch.where(allowed, ranks.true.double() / ranks.all, 0.0)
    best = torch.full((num_classes,), torch.nan, dtype=torch.float64, device=ranks.row.device)
    return best.scatter_reduce_(0, ranks.row, precision, "amax", include_self=False)


def true_positives_needed(positives: Tensor, recall: float) -> Tensor:
    """The smallest count with count / positives >= recall, at least 1.

    In floating point 0.55 * 100 is 55.00000000000001, and its ceiling is 56. So the product is first lowered by a
    relative 1e-12.
    """
    return (positives.double() * (recall * (1 - 1e-12))).ceil().clamp(min=1).long()


def check_recalls(recalls: Sequence[float]) -> tuple[float, ...]:
    """The recalls, in the given order. Raises unless all lie in (0, 1]."""
    for recall in recalls:
        if not 0 < recall <= 1:
            raise ValueError(f"recalls must lie in (0, 1], got {recall}")
    return tuple(recalls)


def pairs_won(scores: Tensor, others: Tensor, *, half: bool = True) -> int:
    """Twice the number of pairs with score > other, plus the number of ties if `half`. Exact in any order."""
    dtype = torch.promote_types(at_least_float32(scores).dtype, at_least_float32(others).dtype)
    scores, others = scores.to(dtype), others.to(dtype).sort().values
    below = torch.searchsorted(others, scores)
    tied_too = torch.searchsorted(others, scores, right=True) if half else below
    return int((below + tied_too).sum())


def as_rows(columns: Tensor, keep: Tensor | None = None) -> Tensor:
    """A copy of the columns, or of those to keep, as contiguous rows in a dtype that can be compared."""
    if keep is not None and keep.numel() < columns.shape[1]:
        columns = columns[:, keep]
    num_samples, num_rows = columns.shape
    rows = torch.empty(num_rows, num_samples, dtype=at_least_float32(columns[:0]).dtype, device=columns.device)
    tile = _TILE_ROWS if columns.device.type == "cpu" else num_samples
    for start in range(0, num_samples, tile):
        rows[:, start : start + tile] = columns[start : start + tile].T
    return rows
