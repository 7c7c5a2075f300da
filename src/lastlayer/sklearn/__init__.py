"""A scikit-learn classifier with the losses and heads of this library. Page: docs/sklearn.md."""

from lastlayer.sklearn.classifier import LastLayerClassifier

__all__ = ["LastLayerClassifier"]
