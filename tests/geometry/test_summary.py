"""measure() gives what each function gives."""

import pytest
import torch

from lastlayer import geometry
from lastlayer.geometry import measure

from . import reference
from .reference import clusters


@pytest.mark.parametrize("self_pairs", [True, False])
def test_measure_agrees_with_references(self_pairs):
    features, target = clusters(60, 4, 6, offset=3.0)
    weight, bias = torch.randn(4, 6), torch.randn(4)
    got = measure(features, target, weight, bias, self_pairs=self_pairs, center_weight=True, global_mean="classes")
    expected = {
        "nc1": reference.nc1(features, target, "classes"),
        "nc2": reference.nc2(features, target, weight, True),
        "nc3": reference.nc3(features, target, weight, True, "classes"),
        "nc4": reference.nc4(features, target, weight, bias),
        "self_duality": reference.self_duality(features, target, weight, "classes"),
        "inter": reference.cosine_table(features, target, True, self_pairs),
        "uncentered_inter": reference.cosine_table(features, target, False, self_pairs),
        "compactness": reference.compactness(features, target),
        "separability": reference.separability(features, target),
        "intra_inter_ratio": reference.intra_inter_ratio(features, target),
        "class_distance_variance": reference.class_distance_variance(features, target),
    }
    for name, value in expected.items():
        value = torch.as_tensor(value, dtype=torch.float64)
        torch.testing.assert_close(getattr(got, name), value, rtol=1e-6, atol=1e-9, msg=name)
    assert got.count.tolist() == torch.bincount(target).tolist()


def test_measure_has_the_gradients_of_the_functions():
    features, target = clusters(40, 4, 6)
    features = features.requires_grad_()
    weight = torch.randn(4, 6, requires_grad=True)
    pairs = {
        "nc1": lambda: geometry.neural_collapse(features, target).nc1,
        "nc3": lambda: geometry.neural_collapse(features, target, weight).nc3,
        "intra_mean": lambda: geometry.cosine_collapse(features, target).intra_mean,
        "uncentered_inter_mean": lambda: geometry.cosine_collapse(features, target, center=False).inter_mean,
        "compactness": lambda: geometry.compactness(features, target),
        "separability": lambda: geometry.separability(features, target),
        "intra_inter_ratio": lambda: geometry.intra_inter_ratio(features, target),
        "class_distance_variance": lambda: geometry.class_distance_variance(features, target),
    }
    got = measure(features, target, weight)
    for name, function in pairs.items():
        ours = torch.autograd.grad(getattr(got, name), features, retain_graph=True)[0]
        torch.testing.assert_close(ours, torch.autograd.grad(function(), features)[0], rtol=1e-4, atol=1e-7)


@pytest.mark.gpu
def test_cuda_agrees_with_cpu_also_with_tf32_allowed():
    features, target = clusters(3000, 7, 40, within=1e-3, offset=10.0)
    weight, bias = torch.randn(7, 40), torch.randn(7)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        got = measure(features.cuda(), target.cuda(), weight.cuda(), bias.cuda())
    finally:
        torch.set_float32_matmul_precision(before)
    expected = measure(features, target, weight, bias)
    for name in expected.__dataclass_fields__:
        torch.testing.assert_close(getattr(got, name).cpu(), getattr(expected, name), rtol=1e-5, atol=1e-6, msg=name)


def test_without_weight_and_without_grad():
    features, target = clusters(20, 3, 4)
    with torch.no_grad():
        got = measure(features.requires_grad_(), target)
    assert got.nc1 is not None
    assert not got.nc1.requires_grad
    assert [got.nc2, got.nc3, got.nc4, got.self_duality] == [None] * 4
