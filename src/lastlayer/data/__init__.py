"""Data sets as tensors: `load` by name or path, splits, synthetic sets, augmentation on the device."""

# importing a file registers its data sets
from . import cifar, embedded, glue, idx, imagenet32, omniglot, svhn, synthetic, tiny_imagenet  # noqa: F401
from ._files import CorruptFileError
from .arrays import arrays
from .augment import Normalize, augment, cutmix, horizontal_flip, mix, mixup, normalize, pad_crop, rotate
from .dataset import Dataset, Split, TextDataset, TextSplit, statistics
from .download import DownloadError, Remote, download
from .folders import ImageFiles, image_files, image_folder
from .mapped import MappedImages
from .registry import (
    Check,
    Source,
    available,
    check,
    default_root,
    describe,
    find,
    get,
    load,
    load_text,
    reading_once,
    register,
)
from .splits import hold_out, long_tail, open_set, stratified, subset
from .tokens import tokenise

__all__ = [
    "Check",
    "CorruptFileError",
    "Dataset",
    "DownloadError",
    "ImageFiles",
    "MappedImages",
    "Normalize",
    "Remote",
    "Source",
    "Split",
    "TextDataset",
    "TextSplit",
    "arrays",
    "augment",
    "available",
    "check",
    "cutmix",
    "default_root",
    "describe",
    "download",
    "find",
    "get",
    "hold_out",
    "horizontal_flip",
    "image_files",
    "image_folder",
    "load",
    "load_text",
    "long_tail",
    "mix",
    "mixup",
    "normalize",
    "open_set",
    "pad_crop",
    "reading_once",
    "register",
    "rotate",
    "statistics",
    "stratified",
    "subset",
    "tokenise",
]
