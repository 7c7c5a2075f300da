"""WRN-d-k."""

import pytest

from lastlayer import models


def test_wrn_refuses_a_depth_that_is_not_6n_plus_4() -> None:
    with pytest.raises(ValueError, match="6n \\+ 4"):
        models.create("wrn", (3, 32, 32), depth=18)
