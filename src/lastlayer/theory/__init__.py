"""The theory of the five papers as functions a researcher can call: closed forms, bounds, landscapes, simulations.

Closed forms are in the corrected form wherever a paper's print is wrong; the tests show each wrong print failing.
Results are plain floats, tensors and frozen dataclasses; pictures belong to the command line and the reports.
"""

from lastlayer.theory import alignment, bounds, contrastive, dynamics, gradients, landscape, minima, scaling
from lastlayer.theory._certificate import Certificate
from lastlayer.theory.unconstrained import Solution, UnconstrainedFeatures

__all__ = [
    "Certificate",
    "Solution",
    "UnconstrainedFeatures",
    "alignment",
    "bounds",
    "contrastive",
    "dynamics",
    "gradients",
    "landscape",
    "minima",
    "scaling",
]
