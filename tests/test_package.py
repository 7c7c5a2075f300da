"""What `import lastlayer` alone gives."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "losses.SoftLogitNormLoss",
        "heads.NormalizedHead",
        "linear_loss.linear_loss",
        "geometry.neural_collapse",
        "tasks.single_logit",
        "theory.minima",
        "load",
    ],
)
def test_public_parts_need_no_import_of_their_own(name: str) -> None:
    code = f"import lastlayer; print(lastlayer.{name}.__name__.split('.')[-1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == name.split(".")[-1], done.stderr


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = "import sys, lastlayer; print([m for m in sys.modules if m == 'torch' or m.startswith('lastlayer.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
