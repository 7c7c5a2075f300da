"""The run folder: its format, its safety, and loading what is in it."""

from lastlayer._core.files import DamagedFileError
from lastlayer.runs.folder import RunFolder, Status

__all__ = ["DamagedFileError", "RunFolder", "Status"]
