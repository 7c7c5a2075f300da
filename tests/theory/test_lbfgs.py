"""The batched optimiser on functions whose minima are known."""

import torch

from lastlayer.theory import _lbfgs


def solve(function, starts: torch.Tensor, **options) -> _lbfgs.Minimum:
    def evaluate(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_(True)
        values = function(x)
        (gradients,) = torch.autograd.grad(values.sum(), x)
        return values.detach(), gradients

    settings = {"tolerance": 1e-10, "max_iterations": 2000, "memory": 20, **options}
    return _lbfgs.minimise(evaluate, starts, norm=lambda x, g: g.norm(dim=1), **settings)


def test_rosenbrock_from_many_starts() -> None:
    torch.manual_seed(0)

    def rosenbrock(x: torch.Tensor) -> torch.Tensor:
        return (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(1)

    found = solve(rosenbrock, torch.randn(20, 2, dtype=torch.float64))
    torch.testing.assert_close(found.points, torch.ones(20, 2, dtype=torch.float64), rtol=0, atol=1e-8)
    assert (found.gradients.norm(dim=1) <= 1e-10).all()
    assert len(set(found.iterations.tolist())) > 1  # every start stops on its own


def test_badly_conditioned_and_degenerate_quadratics() -> None:
    torch.manual_seed(1)
    scales = torch.cat([torch.zeros(5), torch.logspace(-2, 2, 15)]).double()
    found = solve(lambda x: 0.5 * (scales * x**2).sum(1) + 2.0, torch.randn(4, 20, dtype=torch.float64))
    assert (found.values - 2.0).abs().max() < 1e-14


def test_a_start_at_a_saddle_or_a_minimum_stays() -> None:
    starts = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.3, 0.2]], dtype=torch.float64)
    found = solve(lambda x: (x[:, 0] ** 2 - 1) ** 2 + x[:, 1] ** 2, starts)
    assert found.iterations[:2].tolist() == [0, 0]
    assert found.values[2] < 1e-15


def test_a_kink_ends_without_a_gradient() -> None:
    torch.manual_seed(2)
    found = solve(lambda x: x.abs().sum(1), torch.randn(5, 3, dtype=torch.float64), max_iterations=300)
    assert found.values.max() < 1e-3


def test_results_do_not_depend_on_the_company() -> None:
    torch.manual_seed(3)
    starts = torch.randn(6, 4, dtype=torch.float64)
    function = lambda x: ((x**2 - 1) ** 2).sum(1) + x.sum(1)  # noqa: E731
    together = solve(function, starts)
    alone = _lbfgs.join([solve(function, row.unsqueeze(0)) for row in starts])
    torch.testing.assert_close(together.points, alone.points, rtol=0, atol=1e-9)
