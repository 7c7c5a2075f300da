"""The commands of `lastlayer theory` that run for seconds: the feature model, toy dynamics, steps to collapse."""

from typing import Annotated, Any

import typer

from lastlayer.cli._theory_command import Classes, Json, Plot, command, draw, tracked
from lastlayer.cli._theory_tables import Row, show


@command
def ufm(
    classes: Classes = 4,
    samples: Annotated[
        list[int] | None, typer.Option("--samples", "-n", help="Samples per class; repeat for each class.")
    ] = None,
    dim: Annotated[
        int | None, typer.Option("--dim", "-d", help="Dimension of the features; the classes if absent.")
    ] = None,
    loss: Annotated[str, typer.Option(help="Name of the loss.")] = "ce",
    lambda_w: Annotated[float, typer.Option(help="Penalty of the classifier.")] = 5e-3,
    lambda_h: Annotated[float, typer.Option(help="Penalty of the features.")] = 5e-3,
    lambda_b: Annotated[float, typer.Option(help="Penalty of the bias.")] = 0.0,
    scale: Annotated[float | None, typer.Option(help="Solve on spheres with this scale.", show_default=False)] = None,
    bias: Annotated[bool, typer.Option(help="Whether there is a bias.")] = True,
    starts: Annotated[int, typer.Option(help="Random starts.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the starts.")] = 0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Solve the unconstrained feature model from many starts and certify every value found.

    JSON: {"points": [one row for each distinct value], "geometry": [measures of the best], "starts": [value, gradient
    norm and iterations of each]}.
    """
    from lastlayer.theory import UnconstrainedFeatures

    per_class = samples or [10]
    model = UnconstrainedFeatures(
        classes,
        per_class[0] if len(per_class) == 1 else per_class,
        classes if dim is None else dim,
        loss,
        lambda_w,
        lambda_h,
        lambda_b,
        scale is not None,
        scale,
        bias=bias,
    )
    found = model.solve(starts=starts, seed=seed)
    points = [
        {
            "kind": each.kind,
            "starts": each.starts,
            "value": each.value,
            "closed form": each.closed_form,
            "gap": each.gap,
            "gradient norm": each.gradient_norm,
            "smallest curvature": None if each.curvature is None else each.curvature.value,
        }
        for each in found.certificates
    ]
    measured = vars(found.certificate.geometry)
    geometry = [
        {"measure": name, "value": float(value)}
        for name, value in measured.items()
        if value is not None and value.ndim == 0
    ]
    ends = [
        {"value": float(v), "gradient norm": float(g), "iterations": int(i)}
        for v, g, i in zip(found.values, found.gradient_norms, found.iterations, strict=True)
    ]
    show(
        {"points": points, "geometry": geometry, "starts": ends},
        as_json,
        titles={"points": f"Where {starts} starts of {loss} ended", "geometry": "Geometry of the best"},
    )
    draw(plot, "ufm", found)


@command
def dynamics(
    loss: Annotated[list[str] | None, typer.Option(help="Names of losses; repeat.")] = None,
    tau: Annotated[float, typer.Option(help="Temperature of every loss that has one.")] = 1.0,
    points: Annotated[int, typer.Option(help="Number of points.")] = 100,
    dim: Annotated[int, typer.Option("--dim", "-d", help="Dimension, 2 or 3.")] = 2,
    classes: Classes = 2,
    steps: Annotated[int, typer.Option(help="Gradient steps.")] = 2000,
    lr: Annotated[float, typer.Option(help="Learning rate of the points.")] = 0.1,
    train_weight: Annotated[bool, typer.Option(help="Train the classifier too.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of points and classifier.")] = 0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Move free points under a linear classifier by gradient descent, as in Figures 2 to 5 of the SLN paper.

    JSON: {"losses": [rows]}. Opposite logits: median of |f1 + f2|/|f|, for two classes.
    """
    import torch

    from lastlayer.theory import dynamics as toy

    if dim not in (2, 3):
        raise ValueError(f"--dim must be 2 or 3, got {dim}")
    if points < 1 or classes < 2:
        raise ValueError(f"at least one point and two classes are needed, got {points} and {classes}")
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(points, dim, generator=generator, dtype=torch.float64)
    weight = torch.nn.functional.normalize(torch.randn(classes, dim, generator=generator, dtype=torch.float64), dim=1)
    target = torch.arange(points) % classes
    rows, paths = [], {}
    for name in tracked(loss or ["ce", "ln", "sln"], "moving points"):
        path = toy.simulate(
            _at_temperature(name, classes, tau), start, target, weight, lr=lr, train_weight=train_weight, steps=steps
        )
        paths[name] = path
        row: Row = {"loss": name, "start": float(path.loss[0]), "end": float(path.loss[-1])}
        row["intra/inter at start"], row["intra/inter at end"] = float(path.ratio[0]), float(path.ratio[-1])
        if classes == 2:
            opposite = path.logits[-1].sum(1).abs() / path.logits[-1].norm(dim=1)
            row["opposite logits"] = float(opposite.median())
        rows.append(row)
    show({"losses": rows}, as_json, titles={"losses": f"{points} points after {steps} steps, tau {tau:g}"})
    draw(plot, "dynamics", paths)


def _at_temperature(name: str, classes: int, tau: float) -> Any:
    """The loss at a temperature, or its name where it has none (the tau of logit-adjusted is a weight of counts)."""
    from lastlayer import losses

    if name == "logit-adjusted":
        return name
    known = losses.create(name, num_classes=classes).hyperparameters()
    key = next((each for each in ("tau", "temperature") if each in known), None)
    return name if key is None else losses.create(name, num_classes=classes, **{key: tau})


@command
def scaling(
    classes: Classes = 10,
    small: Annotated[list[float] | None, typer.Option(help="Small scales; repeat.")] = None,
    large: Annotated[list[float] | None, typer.Option(help="Large scales; repeat.")] = None,
    starts: Annotated[int, typer.Option(help="Random starts of each scale; the median counts.")] = 3,
    tolerance: Annotated[
        float, typer.Option(help="How far cosines may be from collapse, one for all scales.")
    ] = 0.0035,
    max_steps: Annotated[int, typer.Option(help="Where to give up.", min=1)] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the starts.")] = 0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Gradient steps to collapse against the scale on spheres, with fitted and predicted laws, for ce and bce.

    Small scales run at learning rate 1, large ones at 0.05. JSON: {"steps": [rows], "fits": [rows]}; null is a scale
    that did not collapse in time.
    """
    from lastlayer.theory import scaling as laws

    small_grid, large_grid = small or [0.1, 0.15, 0.2, 0.3, 0.4], large or [5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0]
    rows, fits = [], []
    regimes = (("small", small_grid, 1.0), ("large", large_grid, 0.05))
    for loss, (regime, grid, lr) in tracked([(loss, each) for loss in ("ce", "bce") for each in regimes], "collapsing"):
        found = laws.steps_to_collapse(
            loss, classes, grid, lr=lr, starts=starts, seed=seed, tolerance=tolerance, max_steps=max_steps
        )
        x, y = found.reached()
        median = dict(zip(x.tolist(), y.tolist(), strict=True))
        rows += [{"loss": loss, "regime": regime, "scale": g, "steps": median.get(g)} for g in grid]
        row: Row = {"loss": loss, "regime": regime}
        row |= dict.fromkeys(("curve", "a", "c", "R^2", "fitted", "predicted"))
        if regime == "small" and len(x) >= 2:
            fit = laws.fit_inverse(x, y)
            slope = (y[0] / y[-1]).log() / (x[-1] / x[0]).log()
            row |= {"curve": "a/scale + c", "a": fit.a, "c": fit.c, "R^2": fit.r2}
            row |= {"fitted": float(slope), "predicted": laws.predicted_power(classes)}
        elif regime == "large" and len(x) >= 3:
            fit = laws.fit_exponential(x, y)
            row |= {"curve": "a e^(b scale) + c", "a": fit.a, "c": fit.c, "R^2": fit.r2}
            row |= {"fitted": fit.b, "predicted": laws.predicted_exponent(loss, classes)}
        fits.append(row)
    show(
        {"steps": rows, "fits": fits},
        as_json,
        titles={
            "steps": f"Steps to collapse, {classes} classes (median of {starts})",
            "fits": "Laws: power p of 1/scale^p for small scales, exponent b for large ones",
        },
    )
    draw(plot, "scaling", rows)
