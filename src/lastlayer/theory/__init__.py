"""The theory of the five papers as functions: closed forms, bounds, landscapes, simulations.

If a paper's print is wrong, the closed form here is the corrected one, and a test shows that the print fails. Results
are plain floats, tensors and frozen dataclasses. `loss_theory.py` says what is known of each loss.
"""

from lastlayer.theory import alignment, bounds, contrastive, dynamics, gradients, landscape, minima, scaling
from lastlayer.theory.loss_theory import LossTheory, NoFormula, names_with, register
from lastlayer.theory.unconstrained import Certificate, Solution, UnconstrainedFeatures

__all__ = [
    "Certificate",
    "LossTheory",
    "NoFormula",
    "Solution",
    "UnconstrainedFeatures",
    "alignment",
    "bounds",
    "contrastive",
    "dynamics",
    "gradients",
    "landscape",
    "minima",
    "names_with",
    "register",
    "scaling",
]
