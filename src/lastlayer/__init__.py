"""The last layer of a classifier: its loss, its head, its features, and what one logit can decide."""

__version__ = "0.1.0"
