"""Data sets as tensors: `load` by name or path, splits, synthetic sets, augmentation on the device."""

from lastlayer._core.files import default_root
from lastlayer._core.registry import import_all

from . import readers
from .augment import Normalize, augment, cutmix, horizontal_flip, mix, mixup, normalize, pad_crop, rotate
from .dataset import Dataset, Split, TextDataset, TextSplit, statistics
from .files import CorruptFileError, DownloadError, Remote, download
from .image_cache import MappedImages
from .loading import Check, check, load, load_text, reading_once
from .readers.arrays import array_named, arrays, as_tensor, read_arrays
from .readers.folders import ImageFiles, image_files, image_folder
from .readers.texts import tokenise
from .sources import Source, available, describe, find, get, register
from .splits import fold, hold_out, known_classes, long_tail, open_set, stratified, subset

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
    "array_named",
    "arrays",
    "as_tensor",
    "augment",
    "available",
    "check",
    "cutmix",
    "default_root",
    "describe",
    "download",
    "find",
    "fold",
    "get",
    "hold_out",
    "horizontal_flip",
    "image_files",
    "image_folder",
    "known_classes",
    "load",
    "load_text",
    "long_tail",
    "mix",
    "mixup",
    "normalize",
    "open_set",
    "pad_crop",
    "read_arrays",
    "reading_once",
    "register",
    "rotate",
    "statistics",
    "stratified",
    "subset",
    "tokenise",
]

import_all(readers)  # each file registers its data sets; it may import the names above
