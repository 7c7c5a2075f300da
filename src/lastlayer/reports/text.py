"""How a table that is wider than the terminal is cut into several."""

from __future__ import annotations

from collections.abc import Sequence


def parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Which columns of these widths go into one table, in as few tables as fit the room.

    Example:
        >>> parts([5, 5, 20, 4], 12)
        [[0, 1], [2], [3]]
    """
    found: list[list[int]] = [[]]
    for index, width in enumerate(widths):
        if found[-1] and sum(widths[other] for other in found[-1]) + width > room:
            found.append([])
        found[-1].append(index)
    return found
