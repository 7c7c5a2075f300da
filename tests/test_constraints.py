"""The constraints file pins everything a development install brings, and names no host."""

import re
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PINS = (Path(__file__).parents[1] / "constraints.txt").read_text().split()


def brought_by(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> None:
    """Add a distribution and everything it requires to those seen."""
    name = canonicalize_name(name)
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    for line in distribution(name).requires or ():
        required = Requirement(line)
        wanted = ({"extra": extra} for extra in extras or {""})
        if required.marker is None or any(required.marker.evaluate(environment) for environment in wanted):
            brought_by(required.name, frozenset(required.extras), seen)


def test_everything_a_development_install_brings_is_pinned() -> None:
    seen: set[tuple[str, frozenset[str]]] = set()
    brought_by("lastlayer", frozenset({"dev"}), seen)
    pinned = {canonicalize_name(pin.partition("==")[0]) for pin in PINS}
    assert {name for name, _ in seen} - pinned == {"lastlayer"}
    assert {"torch", "setuptools", "scikit-learn"} <= pinned


def test_a_pin_is_a_name_and_a_version() -> None:
    assert "torch==2.13.0" in PINS
    for pin in PINS:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", pin), pin
