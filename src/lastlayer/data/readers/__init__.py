"""Readers of data sets: one file per format or family. Importing this package registers every named data set."""

import sys

from lastlayer._core.registry import import_all

import_all(sys.modules[__name__])
