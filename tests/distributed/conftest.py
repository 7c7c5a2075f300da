"""What the tests over several processes share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.processes import answers_of_ranks


@pytest.fixture(scope="module", params=[2, 3], ids=["two ranks", "three ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[dict[Any, Any]]]:
    """How many ranks, and the answers of each. The processes of a test module start once and run every case."""
    return request.param, answers_of_ranks(request.module.rank, request.param, tmp_path_factory.mktemp("ranks"))
