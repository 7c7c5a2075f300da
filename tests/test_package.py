"""What `import lastlayer` alone gives."""

import subprocess
import sys

# torch is imported once, and each part is asked for in a process that has no other.
PROGRAM = """
import os, sys, torch, lastlayer
for name in sys.argv[1:]:
    if not os.fork():
        part, attribute = name.split(".") if "." in name else (None, name)
        owner = getattr(lastlayer, part) if part else lastlayer
        print(getattr(owner, attribute).__name__.split(".")[-1], flush=True)
        os._exit(0)
    os.wait()
"""


def test_public_parts_need_no_import_of_their_own() -> None:
    names = [
        "losses.SoftLogitNormLoss",
        "heads.NormalizedHead",
        "linear_loss.linear_loss",
        "geometry.neural_collapse",
        "tasks.single_logit",
        "theory.minima",
        "load",
    ]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [name.split(".")[-1] for name in names], done.stderr


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = "import sys, lastlayer; print([m for m in sys.modules if m == 'torch' or m.startswith('lastlayer.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
