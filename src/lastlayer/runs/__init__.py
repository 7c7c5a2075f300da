"""Where runs lie on disk: the folder of one run, and the state of every run in a folder."""

from lastlayer._core.files import DamagedFileError
from lastlayer.runs.folder import RunFolder, Status, identity_of, is_run
from lastlayer.runs.survey import (
    Comparison,
    RunState,
    Survey,
    look,
    read_comparison,
    run_folders,
    survey,
    write_comparison,
)

__all__ = [
    "Comparison",
    "DamagedFileError",
    "RunFolder",
    "RunState",
    "Status",
    "Survey",
    "identity_of",
    "is_run",
    "look",
    "read_comparison",
    "run_folders",
    "survey",
    "write_comparison",
]
