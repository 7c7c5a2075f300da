"""Write the golden files anew: `python -m tests.golden.make [FILE ...]`, from the repository's root.

Do this only for a change that is meant to change numbers or names, and say in the commit which and why. Files made on
another machine are compared to the bit on that machine from then on.
"""

import sys

import torch

from tests.golden.cases import LOSSES, NAMES, RECORDS
from tests.golden.records import write

if __name__ == "__main__":
    torch.set_num_threads(1)
    for file in sys.argv[1:] or RECORDS:
        names = NAMES[file]() if file in NAMES else LOSSES
        write(file, {name: RECORDS[file](name) for name in names})
