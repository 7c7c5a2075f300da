"""The solver against closed forms, with every objective recomputed from a loss written here in float64."""

import math

import pytest
import torch

from lastlayer import losses
from lastlayer.theory import (
    LossTheory,
    Solution,
    UnconstrainedFeatures,
    contrastive,
    landscape,
    minima,
    register,
)


def mean_loss(name: str, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The papers' losses in float64, independent of the library."""
    true, lse = z[torch.arange(len(y)), y], torch.logsumexp(z, 1)
    ce = lse - true
    if name == "ls":
        return (0.9 * ce + 0.1 * (lse - z.mean(1))).mean()
    if name == "focal":
        return ((1 - torch.exp(-ce)) ** 3 * ce).mean()
    if name == "mse":
        return ((true - 15) ** 2 + z.square().sum(1) - true**2).mean()
    if name == "bce":
        return (torch.logaddexp(z, torch.zeros_like(z)).sum(1) - true).mean()
    return ce.mean()


def objective(name: str, found: Solution, lw: float, lh: float, lb: float) -> float:
    W, H, b = found.weight, found.features, found.bias
    penalty = lw * W.square().sum() + lh * H.square().sum() + lb * b.square().sum()
    return (mean_loss(name, H @ W.T + b, found.target) + penalty / 2).item()


@pytest.mark.parametrize("name", ["ce", "ls", "focal", "mse", "bce"])
@pytest.mark.parametrize(("K", "d"), [(3, 2), (3, 6), (8, 8)])
def test_global_minimum_of_theorem_one(name: str, K: int, d: int) -> None:
    n, lw, lh = 3, 6e-3, 4e-3
    found = UnconstrainedFeatures(K, n, d, name, lw, lh, 0.0).solve(starts=8)
    formula = minima.unconstrained(name, K, n, lw, lh)
    assert objective(name, found, lw, lh, 0.0) == pytest.approx(formula.loss, abs=1e-10)
    assert found.certificate.kind == "global minimum"
    assert found.certificate.gap == pytest.approx(0.0, abs=1e-10)
    assert found.certificate.gradient_norm <= 1e-9
    assert (found.values - formula.loss).abs().max() < 1e-6  # every start, not only the best
    ideal = -formula.rho * (torch.eye(K, dtype=torch.float64) - 1 / K)
    scale = math.sqrt(n * lh / lw)
    torch.testing.assert_close(found.weight @ found.weight.T, scale * ideal, rtol=0, atol=1e-6)
    assert found.weight.square().sum(1).max().item() == pytest.approx(formula.w_norm2, abs=1e-6)
    assert found.features.square().sum(1).max().item() == pytest.approx(formula.h_norm2, abs=1e-6)
    torch.testing.assert_close(found.features, math.sqrt(lw / (n * lh)) * found.weight[found.target], rtol=0, atol=1e-6)
    assert found.features.sum(0).abs().max() < 1e-6
    # Lemma 5: lambda_w W'W = lambda_h H'H at every critical point (d x d; the paper prints H'H for the other order)
    torch.testing.assert_close(
        lw * found.weight.T @ found.weight, lh * found.features.T @ found.features, rtol=0, atol=1e-8
    )
    z = found.features @ found.weight.T + found.bias
    assert z[0, 0].item() - z[0, 1].item() == pytest.approx(-formula.rho, abs=1e-6)
    if name in ("mse", "bce"):  # their bias is no free shift
        assert z[0, 0].item() == pytest.approx(formula.z_true, abs=1e-6)
        assert z[0, 1].item() == pytest.approx(formula.z_false, abs=1e-6)
    geometry = found.certificate.geometry
    assert float(geometry.nc1) < 1e-10
    assert float(geometry.nc2) < 1e-5
    assert float(geometry.nc3) < 1e-5
    assert float(geometry.nc4) == 0.0


def test_printed_gram_matrix_has_the_wrong_shape() -> None:
    """Theorem 1 prints W'W = ... (I - J): that is d x d and not the frame; W W' is."""
    found = UnconstrainedFeatures(3, 2, 6, "ce", 5e-3, 5e-3).solve(starts=2)
    assert (found.weight.T @ found.weight).shape == (6, 6)
    assert torch.linalg.matrix_rank(found.weight.T @ found.weight, atol=1e-6) == 2


def test_squared_error_converges_from_every_start() -> None:
    """Its bias curves far more than that of the other losses; in their coordinates the starts stopped short."""
    found = UnconstrainedFeatures(10, 3, 10, "mse", 5e-4, 5e-4).solve(starts=2, curvature=False)
    assert found.gradient_norms.max() <= 1e-9
    assert found.values.max().item() == pytest.approx(minima.unconstrained("mse", 10, 3, 5e-4, 5e-4).loss, abs=1e-10)


def test_squared_error_without_bias_is_an_orthogonal_frame() -> None:
    K, n, lam = 4, 2, 0.05
    found = UnconstrainedFeatures(K, n, K, "mse", lam, lam, bias=False).solve(starts=4)
    formula = minima.unconstrained("mse", K, n, lam, lam, bias=False)
    assert found.loss == pytest.approx(formula.loss, abs=1e-9)
    expected = formula.w_norm2 * torch.eye(K, dtype=torch.float64)
    torch.testing.assert_close(found.weight @ found.weight.T, expected, rtol=0, atol=1e-5)
    assert found.certificate.kind == "global minimum"


@pytest.mark.parametrize("share", [0.5, 0.9, 1.1, 5.0])
def test_binary_cross_entropy_with_a_penalised_bias(share: float) -> None:
    """Below the threshold a simplex frame; above it a common direction appears, opposite in W and H."""
    K, n, lw, lh = 6, 2, 8e-3, 5e-3
    lb = share * minima.bias_penalty_threshold(K, n, lw, lh)
    found = UnconstrainedFeatures(K, n, K + 1, "bce", lw, lh, lb).solve(starts=6)
    formula = minima.unconstrained("bce", K, n, lw, lh, lambda_b=lb)
    assert objective("bce", found, lw, lh, lb) == pytest.approx(formula.loss, abs=1e-10)
    assert found.bias.mean().item() == pytest.approx(formula.bias, abs=1e-5)
    common_w, common_h = found.weight.mean(0), found.features.mean(0)
    if share < 1:
        assert formula.common == 0.0
        assert common_w.norm() < 1e-5
    else:
        assert formula.common < 0
        assert common_w.norm() > 1e-3
        cosine = (common_w @ common_h / (common_w.norm() * common_h.norm())).item()
        assert cosine == pytest.approx(-1.0, abs=1e-6)
        # K h.w over the common direction is the eigenvalue `common`
        assert (K * common_w @ common_h).item() == pytest.approx(formula.common, abs=1e-5)
    gram = found.weight @ found.weight.T
    frame = torch.eye(K, dtype=torch.float64) - 1 / K
    expected = math.sqrt(n * lh / lw) * (-formula.rho * frame + abs(formula.common) / K)
    torch.testing.assert_close(gram, expected, rtol=0, atol=1e-5)


def test_without_room_for_the_common_direction_no_closed_form_is_claimed() -> None:
    K, n, lam = 5, 1, 0.01
    lb = 10 * minima.bias_penalty_threshold(K, n, lam, lam)
    certificate = UnconstrainedFeatures(K, n, K - 1, "bce", lam, lam, lb).solve(starts=2).certificate
    assert certificate.closed_form is None
    assert certificate.lower_bound is not None
    assert certificate.value > certificate.lower_bound


@pytest.mark.parametrize("loss", ["ce", "bce"])
@pytest.mark.parametrize(("K", "scale"), [(3, 0.5), (3, 8.0), (3, 64.0), (10, 0.5), (10, 8.0)])
def test_spheres(loss: str, K: int, scale: float) -> None:
    found = UnconstrainedFeatures(K, 2, K, loss, normalized=True, scale=scale).solve(starts=4)
    z = scale * found.features @ found.weight.T - found.bias  # the bias is subtracted
    value = mean_loss(loss, z, found.target).item()
    binary = minima.normalized_binary_cross_entropy(K, scale)
    expected = minima.normalized_cross_entropy(K, scale) if loss == "ce" else binary.loss
    assert value == pytest.approx(expected, abs=1e-10)
    assert found.certificate.kind == "global minimum"
    assert found.weight.norm(dim=1).sub(1).abs().max() < 1e-12
    if scale < 64:  # beyond, the loss is flat to rounding long before collapse
        ideal = K / (K - 1) * (torch.eye(K, dtype=torch.float64) - 1 / K)
        torch.testing.assert_close(found.weight @ found.weight.T, ideal, rtol=0, atol=1e-5)
        if loss == "bce":
            assert (found.bias - binary.bias).abs().max() < 1e-5
        else:
            shifted = mean_loss("ce", z - 3.7, found.target).item()
            assert shifted == pytest.approx(value, abs=1e-13)


def merged(model: UnconstrainedFeatures, K: int, n: int, lam: float) -> tuple[torch.Tensor, ...]:
    """A critical point in which the last two classes share one row and one feature.

    Minimise with them tied: the tied problem is symmetric, so its critical points are critical for the full one.
    """
    torch.manual_seed(0)
    W = torch.randn(K - 1, K, dtype=torch.float64, requires_grad=True)
    H = torch.randn(K - 1, K, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(K - 1, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([*range(K - 1), K - 2])
    optimizer = torch.optim.LBFGS(
        [W, H, b], max_iter=2000, line_search_fn="strong_wolfe", tolerance_grad=1e-13, tolerance_change=1e-18
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = model.objective(W[index], H[index][model.target], b[index])
        value.backward()
        return value

    optimizer.step(closure)
    return W.detach()[index], H.detach()[index][model.target], b.detach()[index]


@pytest.mark.parametrize("name", ["ce", "focal"])
def test_saddles_are_found_and_left(name: str) -> None:
    K, n, lam = 4, 2, 0.02
    model = UnconstrainedFeatures(K, n, K, name, lam, lam, 1e-3)
    origin = (
        torch.zeros(K, K, dtype=torch.float64),
        torch.zeros(n * K, K, dtype=torch.float64),
        torch.zeros(K, dtype=torch.float64),
    )
    for point in (origin, merged(model, K, n, lam)):
        certificate = model.certify(*point)
        assert certificate.gradient_norm < 1e-7
        assert certificate.kind == "strict saddle"
        assert certificate.curvature is not None
        assert certificate.curvature.value < -1e-8
        assert certificate.escape is not None
        for sign in (-1.0, 1.0):
            moved = [p + sign * 1e-2 * e for p, e in zip(point, certificate.escape, strict=True)]
            z = moved[1] @ moved[0].T + moved[2]
            penalty = lam * moved[0].square().sum() + lam * moved[1].square().sum() + 1e-3 * moved[2].square().sum()
            assert (mean_loss(name, z, model.target) + penalty / 2).item() < certificate.value
    expected = landscape.origin_curvature(name, K, n, lam, lam, lambda_b=1e-3)
    assert float(model.certify(*origin).curvature) == pytest.approx(expected, abs=1e-9)


def test_focal_has_a_spurious_minimum_with_many_classes() -> None:
    """K = 100, gamma = 3, c = 0.0114: the origin has no negative curvature and lies above the frame."""
    K, c = 100, 0.0114
    model = UnconstrainedFeatures(K, 1, K, "focal", c, c, 1.0)
    zero = torch.zeros(K, K, dtype=torch.float64)
    certificate = model.certify(zero, zero)
    assert certificate.kind == "spurious"
    assert certificate.value == pytest.approx(4.468, abs=1e-3)
    assert certificate.closed_form == pytest.approx(4.382, abs=1e-3)
    assert certificate.closed_form == pytest.approx(contrastive.minimisers("focal", K, c).value, rel=1e-12)
    assert landscape.origin_curvature("focal", K, 1, c, c, bias=False) > 0


def test_unbalanced_classes_are_certified_by_duality() -> None:
    """The lower bound, recomputed with an independent loss: the tangent of CE has spectral norm sqrt(lw lh)."""
    counts, lw, lh, lb = (12, 5, 2, 1), 4e-3, 6e-3, 2e-3
    found = UnconstrainedFeatures(4, counts, 5, "ce", lw, lh, lb).solve(starts=6)
    certificate = found.certificate
    assert certificate.closed_form is None
    assert certificate.kind == "global minimum"
    z0 = (found.features @ found.weight.T).requires_grad_(True)
    b = found.bias.clone().requires_grad_(True)
    value = mean_loss("ce", z0 + b, found.target)
    G, g = torch.autograd.grad(value, [z0, b])
    price = math.sqrt(lw * lh)
    assert torch.linalg.matrix_norm(G, 2).item() <= price * (1 + 1e-6)
    bound = value.item() - (G * z0).sum().item() - (g @ b).item() - (g @ g).item() / (2 * lb)
    assert found.loss == pytest.approx(bound, abs=1e-7)
    assert found.loss == pytest.approx(objective("ce", found, lw, lh, lb), abs=1e-12)
    norms = found.weight.norm(dim=1)
    assert norms[0] > norms[3]  # the rare class gets the shorter row


@pytest.mark.parametrize("name", ["sln", "self-norm", "nce", "batch-ce", "soft-margin", "logit-adjusted"])
def test_any_smooth_loss(name: str) -> None:
    found = UnconstrainedFeatures(3, 2, 4, name, 0.01, 0.01, 0.01).solve(starts=4)
    assert found.certificate.gradient_norm < 1e-8
    assert found.certificate.kind in ("global minimum", "local minimum")
    assert found.certificate.curvature is not None
    assert found.certificate.curvature.value > -1e-8


def test_piecewise_losses_have_no_curvature_certificate() -> None:
    for name, options in (("max-margin", {}), ("large-margin", {}), ("arc-margin", {"normalized": True})):
        model = UnconstrainedFeatures(3, 2, 3, name, 0.01, 0.01, **options)
        found = model.solve(starts=3, max_iterations=150)
        assert found.certificate.curvature is None
        assert found.certificate.kind in ("global minimum", "not smooth")
        if name == "max-margin":
            assert found.certificate.gap is not None
            assert -1e-9 <= found.certificate.gap < 1e-2


def test_other_modules_and_losses_that_cannot_be_vectorised() -> None:
    expected = minima.unconstrained("ce", 3, 2, 0.01, 0.01).loss

    class Branching(torch.nn.Module):
        def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            if logits.max() > 1e9:  # reads a value: vmap refuses
                raise OverflowError
            return torch.nn.functional.cross_entropy(logits, target)

    for loss in (torch.nn.CrossEntropyLoss(), Branching(), losses.CrossEntropyLoss(reduction="sum")):
        found = UnconstrainedFeatures(3, 2, 3, loss, 0.01, 0.01).solve(starts=2)
        assert found.loss == pytest.approx(expected, abs=1e-10)
    # class weights leave the closed form but not the solver
    weighted = losses.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    certificate = UnconstrainedFeatures(3, 2, 3, weighted, 0.01, 0.01).solve(starts=2).certificate
    assert certificate.kind == "local minimum"
    assert certificate.closed_form is None


def test_no_certificate_where_a_class_is_ignored() -> None:
    """Cross-entropy that ignores a class goes below the closed form, which is then no certificate."""
    ignoring = losses.CrossEntropyLoss(ignore_index=1)
    certificate = UnconstrainedFeatures(3, 2, 4, ignoring, 5e-3, 5e-3).solve(starts=2).certificate
    assert certificate.value < minima.unconstrained("ce", 3, 2, 5e-3, 5e-3).loss - 0.01
    assert certificate.closed_form is None
    assert certificate.kind == "local minimum"


def test_a_value_below_the_closed_form_is_no_global_minimum() -> None:
    """A loss whose registered profile is too high: the solver goes below the closed form that follows from it."""

    def plain(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, target)

    class Overestimated(losses.Loss):
        function = staticmethod(plain)

    @register(Overestimated)
    class _Theory(LossTheory):
        def phi(self, K: int) -> contrastive.Phi:
            return contrastive.Phi(K, margin=0.1)

    certificate = UnconstrainedFeatures(3, 2, 4, Overestimated(), 5e-3, 5e-3).solve(starts=1).certificate
    assert certificate.gap is not None
    assert certificate.gap < -1e-3
    assert certificate.kind == "spurious"


def test_a_vacuous_lower_bound_gives_no_gap() -> None:
    """Squared error without bias needs d >= K; below, the tangent's bound is negative and says nothing."""
    certificate = UnconstrainedFeatures(5, 2, 4, "mse", 5e-3, 5e-3, bias=False).solve(starts=2).certificate
    assert certificate.closed_form is None
    assert certificate.lower_bound == 0.0
    assert certificate.gap is None
    assert certificate.kind == "local minimum"


def test_class_weights_do_not_change_what_a_loss_takes() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    margin = losses.create("max-margin", weight=weight)
    certificate = UnconstrainedFeatures(3, 2, 3, margin, 0.01, 0.01).solve(starts=1, max_iterations=20).certificate
    assert certificate.kind == "not smooth"
    assert certificate.curvature is None
    large = losses.create("large-margin", class_weight=weight)
    assert UnconstrainedFeatures(3, 2, 4, large, 0.01, 0.01).solve(starts=1, max_iterations=20).loss < math.log(3)


def test_the_same_seed_gives_the_same_answer() -> None:
    model = UnconstrainedFeatures(3, 2, 3, "ce", 0.01, 0.01)
    first, second = model.solve(starts=2, seed=5), model.solve(starts=2, seed=5)
    assert torch.equal(first.weight, second.weight)


def test_the_answer_does_not_depend_on_the_threads() -> None:
    model = UnconstrainedFeatures(10, 40, 50, "ce", 0.01, 0.01)  # large enough for two groups of starts
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(model.solve(starts=10, max_iterations=5, curvature=False))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[0].values, found[1].values, rtol=1e-12, atol=0)


def test_wrong_arguments() -> None:
    for kwargs, word in (
        ({"n": [1, 2]}, "K = 3"),
        ({"lambda_w": 0.0}, "lambda_w"),
        ({"scale": 4.0}, "normalized=True"),
        ({"loss": "arc-margin"}, "cosines"),
        ({"loss": "kd"}, "teacher"),
        ({"d": 0}, "d must"),
    ):
        arguments = {"K": 3, "n": 2, "d": 3, "loss": "ce", "lambda_w": 0.1, "lambda_h": 0.1, **kwargs}
        with pytest.raises(ValueError, match=word):
            UnconstrainedFeatures(**arguments)
    with pytest.raises(ValueError, match="weight must be"):
        UnconstrainedFeatures(3, 2, 3, "ce", 0.1, 0.1).certify(torch.zeros(2, 3), torch.zeros(6, 3))


def test_a_loss_of_the_user_own_making_is_solved_too() -> None:
    """A subclass of `losses.Loss` that no registry knows, here cross-entropy under another name."""

    def doubled(logits: torch.Tensor, target: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        return factor * torch.nn.functional.cross_entropy(logits, target)

    class Doubled(losses.Loss):
        function = staticmethod(doubled)

    found = UnconstrainedFeatures(3, 2, 3, Doubled(), 5e-3, 5e-3).solve(starts=2)
    assert found.loss == pytest.approx(minima.unconstrained("ce", 3, 2, 5e-3, 5e-3).loss, abs=1e-10)
    assert found.certificate.kind == "local minimum"  # no closed form is known for it
    with pytest.raises(ValueError, match="Doubled"):
        minima.unconstrained(Doubled(), 3, 2, 5e-3, 5e-3)
