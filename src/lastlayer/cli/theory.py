"""`lastlayer theory ...`: closed forms, the unconstrained feature model, toy dynamics, alignment, bounds, scale laws.

Every command prints tables, or with --json the same numbers, and with --plot writes a picture that opens offline.
Tests: tests/cli/test_theory.py.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lastlayer.cli._theory_tables import Row, show

theory = typer.Typer(
    help="What the theory of the five papers says at your numbers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Plot = Annotated[Path | None, typer.Option(help="Write a picture that opens without a network.", show_default=False)]
Classes = Annotated[int, typer.Option("--classes", "-k", help="Number of classes.")]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command; a user's mistake ends in one line and exit code 2 (LASTLAYER_DEBUG=1 shows the traceback)."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        plot = kwargs.get("plot")
        try:
            if plot is not None and not plot.resolve().parent.is_dir():
                raise ValueError(f"{plot}: its folder does not exist")
            function(*args, **kwargs)
        except (ValueError, TypeError, OSError) as error:
            if os.environ.get("LASTLAYER_DEBUG"):
                raise
            typer.echo(f"lastlayer theory {function.__name__}: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from None

    return theory.command()(wrapped)


@_command
def minima(
    classes: Classes = 10,
    scale: Annotated[list[float] | None, typer.Option(help="Scales of the sphere model; repeat.")] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", help="Samples per class.")] = 10,
    lambda_w: Annotated[float, typer.Option(help="Penalty of the classifier.")] = 5e-3,
    lambda_h: Annotated[float, typer.Option(help="Penalty of the features.")] = 5e-3,
    lambda_b: Annotated[float, typer.Option(help="Penalty of the bias.")] = 0.0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Smallest losses in closed form: on spheres by scale, and of the unconstrained feature model by loss.

    JSON: {"spheres": [...], "unconstrained": [...]}; a loss without a closed form at these penalties has null.
    """
    from lastlayer.theory import minima as closed
    from lastlayer.theory import scaling

    spheres = []
    for value in scale or [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]:
        binary = closed.normalized_binary_cross_entropy(classes, value)
        spheres.append(
            {
                "scale": value,
                "cross-entropy": closed.normalized_cross_entropy(classes, value),
                "binary cross-entropy": binary.loss,
                "bias b*": binary.bias,
                "b* separates": value > scaling.bias_threshold(classes),
            }
        )
    models = []
    for name in ("ce", "ls", "focal", "soft-margin", "max-margin", "mse", "bce"):
        row: Row = {"loss": name}
        try:
            found = closed.unconstrained(name, classes, samples, lambda_w, lambda_h, lambda_b=lambda_b)
        except ValueError:
            row |= dict.fromkeys(("minimum", "true logit", "false logit", "|w|^2", "|h|^2", "common"))
        else:
            row |= {
                "minimum": found.loss,
                "true logit": found.z_true,
                "false logit": found.z_false,
                "|w|^2": found.w_norm2,
                "|h|^2": found.h_norm2,
                "common": found.common,
            }
        models.append(row)
    show(
        {"spheres": spheres, "unconstrained": models},
        as_json,
        titles={
            "spheres": f"Minima on spheres, {classes} classes",
            "unconstrained": f"Unconstrained features, {classes} classes of {samples}, penalties {lambda_w:g}, "
            f"{lambda_h:g}, {lambda_b:g}",
        },
    )
    _draw(plot, "minima", spheres)


@_command
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
    _draw(plot, "ufm", found)


@_command
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

    from lastlayer import losses
    from lastlayer.theory import dynamics as toy

    if dim not in (2, 3):
        raise ValueError(f"--dim must be 2 or 3, got {dim}")
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(points, dim, generator=generator, dtype=torch.float64)
    weight = torch.nn.functional.normalize(torch.randn(classes, dim, generator=generator, dtype=torch.float64), dim=1)
    target = torch.arange(points) % classes
    rows, paths = [], {}
    for name in loss or ["ce", "ln", "sln"]:
        made = losses.create(name, num_classes=classes)
        known = made.hyperparameters()
        key = next((each for each in ("tau", "temperature") if each in known), None)
        if key is not None and name != "logit-adjusted":
            made = losses.create(name, num_classes=classes, **{key: tau})
        path = toy.simulate(made, start, target, weight, lr=lr, train_weight=train_weight, steps=steps)
        paths[name] = path
        row: Row = {"loss": name, "start": float(path.loss[0]), "end": float(path.loss[-1])}
        row["intra/inter at start"], row["intra/inter at end"] = float(path.ratio[0]), float(path.ratio[-1])
        if classes == 2:
            opposite = path.logits[-1].sum(1).abs() / path.logits[-1].norm(dim=1)
            row["opposite logits"] = float(opposite.median())
        rows.append(row)
    show({"losses": rows}, as_json, titles={"losses": f"{points} points after {steps} steps, tau {tau:g}"})
    _draw(plot, "dynamics", paths)


@_command
def alignment(
    classes: Classes = 10,
    batch_size: Annotated[int, typer.Option("--batch-size", "-m", help="Size of a batch, for the batch losses.")] = 32,
    epsilon: Annotated[float, typer.Option(help="How small a loss the counter-examples reach.")] = 1e-6,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Which losses force logit separation, how small they must be for it, and the counter-examples of the others.

    JSON: {"aligned": [...], "not aligned": [...]}.
    """
    from lastlayer.theory import alignment as separation

    aligned = []
    for name in separation.ALIGNED:
        found = separation.threshold(name, num_classes=classes, batch_size=batch_size)
        aligned.append(
            {
                "loss": name,
                "threshold": found.value,
                "by the paper's argument": found.sufficient,
                "above": found.infimum,
                "of": "one batch" if found.couples == "batch" else "the sum over samples",
            }
        )
    others = []
    for name in separation.NOT_ALIGNED:
        example = separation.counterexample(name, epsilon)
        others.append(
            {
                "loss": name,
                "loss above its infimum": example.excess,
                "a true logit": float(example.logits[1, 1]),
                "a false logit": float(example.logits[0, 1]),
            }
        )
    show(
        {"aligned": aligned, "not aligned": others},
        as_json,
        titles={
            "aligned": f"Below the threshold every true logit exceeds every false one ({classes} classes, "
            f"batches of {batch_size})",
            "not aligned": "No loss is small enough: two samples, two classes",
        },
    )
    _draw(plot, "alignment", aligned)


@_command
def bounds(
    classes: Classes = 4,
    alpha_beta: Annotated[float, typer.Option(help="Product of the norm budgets.")] = 1.0,
    lam: Annotated[
        float | None, typer.Option(help="Weight decay with batch norm, in place of the budgets.", show_default=False)
    ] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Excess of the loss over its minimum; repeat.")] = None,
    delta: Annotated[float, typer.Option(help="Share of classes or pairs left out.")] = 0.1,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """How close to collapse a nearly optimal loss forces a model to be; what says nothing is printed as vacuous.

    JSON: {"bounds": [rows]}; a vacuous bound is null, and "vacuous" names it.
    """
    from lastlayer.theory import bounds as near

    rows = []
    for value in epsilon or [10.0**-k for k in range(2, 17, 2)]:
        if lam is None:
            found = near.collapse(classes, alpha_beta, value, delta)
        else:
            found = near.batch_norm(classes, lam, value, delta)
        proved = near.rigorous_collapse(classes, found.alpha_beta, value, delta) if delta < 0.5 else None
        flags = vars(found.vacuous)
        row: Row = {"epsilon": value}
        for name, title in (("intra", "intra >="), ("self_duality", "self-duality >="), ("inter", "inter <=")):
            row[title] = None if flags[name] else getattr(found, name)
        row["intra >= (proved)"] = None if proved is None or proved.vacuous.intra else proved.intra
        row["vacuous"] = [name for name, flag in flags.items() if flag]
        rows.append(row)
    what = f"norm product {found.alpha_beta:g}" if lam is None else f"weight decay {lam:g}"
    show(
        {"bounds": rows},
        as_json,
        titles={"bounds": f"{classes} classes, {what}, for {1 - delta:.0%} of them; constant R = e^{found.log_R:.1f}"},
        absent="vacuous",
    )
    _draw(plot, "bounds", rows)


@_command
def scaling(
    classes: Classes = 10,
    small: Annotated[list[float] | None, typer.Option(help="Small scales; repeat.")] = None,
    large: Annotated[list[float] | None, typer.Option(help="Large scales; repeat.")] = None,
    starts: Annotated[int, typer.Option(help="Random starts of each scale; the median counts.")] = 3,
    tolerance: Annotated[
        float, typer.Option(help="How far cosines may be from collapse, one for all scales.")
    ] = 0.0035,
    max_steps: Annotated[int, typer.Option(help="Where to give up.")] = 20_000,
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
    for loss in ("ce", "bce"):
        for regime, grid, lr in (("small", small_grid, 1.0), ("large", large_grid, 0.05)):
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
    _draw(plot, "scaling", rows)


def _draw(plot: Path | None, command: str, content: Any) -> None:
    if plot is not None:
        from lastlayer.cli._theory_page import page

        plot.write_text(page(command, content), encoding="utf-8")
        typer.echo(f"wrote {plot}", err=True)
