"""`lastlayer theory ...`: closed forms, the unconstrained feature model, toy dynamics, alignment, bounds, scale laws.

Each command prints tables, or with --json the same numbers as JSON. With --plot it also writes a picture that opens
offline.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lastlayer.cli._say import check_writable, stop

theory = typer.Typer(
    help="What the theory of the five papers says for your numbers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Classes = Annotated[int, typer.Option("--classes", "-k", help="Number of classes.")]
LambdaW = Annotated[float, typer.Option(help="Penalty of the classifier.")]
LambdaH = Annotated[float, typer.Option(help="Penalty of the features.")]
LambdaB = Annotated[float, typer.Option(help="Penalty of the bias.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Plot = Annotated[
    Path | None, typer.Option(help="Also write a picture, an HTML file that opens offline.", show_default=False)
]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: register a command. A user's mistake ends in one line, or with LASTLAYER_DEBUG=1 in a traceback."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            if kwargs.get("plot") is not None:
                check_writable("--plot", kwargs["plot"])
            function(*args, **kwargs)
        except (ValueError, TypeError, OSError, OverflowError, MemoryError, RuntimeError) as error:
            full = isinstance(error, MemoryError) or "allocate memory" in str(error)  # torch raises a RuntimeError
            if os.environ.get("LASTLAYER_DEBUG") or (isinstance(error, RuntimeError) and not full):
                raise
            why = "more memory is needed than there is; choose smaller numbers" if full else str(error)
            stop(f"theory {function.__name__}", why)

    return theory.command()(wrapped)


@command
def minima(
    classes: Classes = 10,
    scale: Annotated[list[float] | None, typer.Option(help="Scale of the sphere model; may be repeated.")] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", help="Samples per class.")] = 10,
    lambda_w: LambdaW = 5e-3,
    lambda_h: LambdaH = 5e-3,
    lambda_b: LambdaB = 0.0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Smallest losses in closed form: on spheres by scale, and of the unconstrained feature model by loss.

    JSON: {"spheres": [...], "unconstrained": [...]}. A loss without a closed form at these penalties has null.
    """
    from lastlayer.cli.theory_output import draw, show
    from lastlayer.theory import NoFormula, scaling
    from lastlayer.theory import minima as closed
    from lastlayer.theory.numbers import check_count

    check_count("--samples", samples, least=1)
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
    names = {"minimum": "loss", "true logit": "z_true", "false logit": "z_false"}
    names |= {"|w|^2": "w_norm2", "|h|^2": "h_norm2", "common": "common"}
    for loss in ("ce", "ls", "focal", "soft-margin", "max-margin", "mse", "bce"):
        try:
            found = closed.unconstrained(loss, classes, samples, lambda_w, lambda_h, lambda_b=lambda_b)
        except NoFormula:
            found = None
        models.append({"loss": loss} | {name: getattr(found, field, None) for name, field in names.items()})
    penalties = f"{lambda_w:g}, {lambda_h:g}, {lambda_b:g}"
    titles = {
        "spheres": f"Minima on spheres, {classes} classes",
        "unconstrained": f"Unconstrained features, {classes} classes of {samples}, penalties {penalties}",
    }
    show({"spheres": spheres, "unconstrained": models}, as_json, titles)
    draw(plot, "minima", spheres)


@command
def ufm(
    classes: Classes = 4,
    samples: Annotated[
        list[int] | None, typer.Option("--samples", "-n", help="Samples per class; give it once, or once per class.")
    ] = None,
    dim: Annotated[
        int | None, typer.Option("--dim", "-d", help="Dimension of the features. Default: the number of classes.")
    ] = None,
    loss: Annotated[str, typer.Option(help="Name of the loss.")] = "ce",
    lambda_w: LambdaW = 5e-3,
    lambda_h: LambdaH = 5e-3,
    lambda_b: LambdaB = 0.0,
    scale: Annotated[float | None, typer.Option(help="Solve on spheres, with this scale.", show_default=False)] = None,
    bias: Annotated[bool, typer.Option(help="Whether there is a bias.")] = True,
    starts: Annotated[int, typer.Option(help="Number of random starts.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the starts.")] = 0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Solve the unconstrained feature model from many starts, and say what is known of each value found.

    JSON: {"points": [one row per distinct value], "geometry": [measures of the best], "starts": [value, gradient norm
    and iterations of each]}.
    """
    from lastlayer.cli.theory_output import draw, show
    from lastlayer.theory import UnconstrainedFeatures

    counts = samples or [10]
    n, d = counts[0] if len(counts) == 1 else counts, classes if dim is None else dim
    model = UnconstrainedFeatures(
        classes, n, d, loss, lambda_w, lambda_h, lambda_b, normalized=scale is not None, scale=scale, bias=bias
    )
    found = model.solve(starts=starts, seed=seed)
    names = ("kind", "starts", "value", "closed_form", "gap", "gradient_norm")
    points = [
        {name.replace("_", " "): getattr(each, name) for name in names}
        | {"smallest curvature": None if each.curvature is None else each.curvature.value}
        for each in found.certificates
    ]
    measured = vars(found.certificate.geometry).items()
    geometry = [{"measure": name, "value": float(x)} for name, x in measured if x is not None and x.ndim == 0]
    ends = [
        {"value": float(v), "gradient norm": float(g), "iterations": int(i)}
        for v, g, i in zip(found.values, found.gradient_norms, found.iterations, strict=True)
    ]
    titles = {"points": f"Where {starts} starts of {loss} ended", "geometry": "Geometry of the best"}
    show({"points": points, "geometry": geometry, "starts": ends}, as_json, titles)
    draw(plot, "ufm", found)


@command
def dynamics(
    loss: Annotated[list[str] | None, typer.Option(help="Name of a loss; may be repeated.")] = None,
    tau: Annotated[float, typer.Option(help="Temperature of each loss that has one.")] = 1.0,
    points: Annotated[int, typer.Option(help="Number of points.")] = 100,
    dim: Annotated[int, typer.Option("--dim", "-d", help="Dimension, 2 or 3.")] = 2,
    classes: Classes = 2,
    steps: Annotated[int, typer.Option(help="Gradient steps.")] = 2000,
    lr: Annotated[float, typer.Option(help="Learning rate of the points.")] = 0.1,
    train_weight: Annotated[bool, typer.Option(help="Whether to train the classifier too.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of points and classifier.")] = 0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Move free points under a linear classifier by gradient descent, as in Figures 2 to 5 of the SLN paper.

    JSON: {"losses": [rows]}. For two classes, "opposite logits" is the median of |f1 + f2|/|f|.
    """
    import torch

    from lastlayer.cli.theory_output import draw, show, tracked
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
        row: dict[str, Any] = {"loss": name, "start": float(path.loss[0]), "end": float(path.loss[-1])}
        row["intra/inter at start"], row["intra/inter at end"] = float(path.ratio[0]), float(path.ratio[-1])
        if classes == 2:
            opposite = path.logits[-1].sum(1).abs() / path.logits[-1].norm(dim=1)
            row["opposite logits"] = float(opposite.median())
        rows.append(row)
    show({"losses": rows}, as_json, titles={"losses": f"{points} points after {steps} steps, tau {tau:g}"})
    draw(plot, "dynamics", paths)


def _at_temperature(name: str, classes: int, tau: float) -> Any:
    """The loss at a temperature, or its name if it has none."""
    from lastlayer import losses

    entry = losses.entry(name)
    key = next((each for each in ("tau", "temperature") if each in entry.options), None)
    # In a loss that needs class counts, tau is the weight of the counts and no temperature.
    if key is None or entry.module.needs_counts:
        return name
    return losses.create(name, num_classes=classes, **{key: tau})


@command
def alignment(
    classes: Classes = 10,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-m", help="Size of a batch, for losses that couple a batch.")
    ] = 32,
    epsilon: Annotated[float, typer.Option(help="The counter-examples reach a loss this close to its infimum.")] = 1e-6,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Which losses force logit separation, how small they must be for that, and counter-examples for the others.

    JSON: {"aligned": [...], "not aligned": [...]}.
    """
    from lastlayer.cli.theory_output import draw, show
    from lastlayer.theory import LossTheory, names_with
    from lastlayer.theory import alignment as separation

    aligned = []
    for name in names_with(LossTheory.threshold):
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
    for name in names_with(LossTheory.counterexample):
        example = separation.counterexample(name, epsilon)
        others.append(
            {
                "loss": name,
                "loss above its infimum": example.excess,
                "a true logit": float(example.logits[1, 1]),
                "a false logit": float(example.logits[0, 1]),
            }
        )
    of = f"({classes} classes, batches of {batch_size})"
    titles = {
        "aligned": f"Below the threshold every true logit exceeds every false one {of}",
        "not aligned": "No loss is small enough: two samples, two classes",
    }
    show({"aligned": aligned, "not aligned": others}, as_json, titles)
    draw(plot, "alignment", aligned)


@command
def bounds(
    classes: Classes = 4,
    alpha_beta: Annotated[float, typer.Option(help="Product of the norm budgets.")] = 1.0,
    lam: Annotated[
        float | None, typer.Option(help="Weight decay with batch norm; replaces the budgets.", show_default=False)
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="Excess of the loss over its minimum; may be repeated.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Share of classes or pairs left out.")] = 0.1,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """How close to collapse a nearly optimal loss forces a model to be. A bound that says nothing is called vacuous.

    JSON: {"bounds": [rows]}. A vacuous bound is null, and "vacuous" names it.
    """
    from lastlayer.cli.theory_output import draw, show
    from lastlayer.theory import bounds as near

    rows = []
    for value in epsilon or [10.0**-k for k in range(2, 17, 2)]:
        if lam is None:
            found = near.collapse(classes, alpha_beta, value, delta)
        else:
            found = near.batch_norm(classes, lam, value, delta)
        proved = near.rigorous_collapse(classes, found.alpha_beta, value, delta) if delta < 0.5 else None
        flags = vars(found.vacuous)
        row: dict[str, Any] = {"epsilon": value}
        for name, title in (("intra", "intra >="), ("self_duality", "self-duality >="), ("inter", "inter <=")):
            row[title] = None if flags[name] else getattr(found, name)
        row["intra >= (proved)"] = None if proved is None or proved.vacuous.intra else proved.intra
        row["vacuous"] = [name for name, flag in flags.items() if flag]
        rows.append(row)
    what = f"norm product {found.alpha_beta:g}" if lam is None else f"weight decay {lam:g}"
    share = f"for {1 - delta:.0%} of them (proved: {max(1 - 2 * delta, 0):.0%})"
    title = f"{classes} classes, {what}, {share}; constant R = e^{found.log_R:.1f}"
    show({"bounds": rows}, as_json, {"bounds": title}, absent="vacuous")
    draw(plot, "bounds", rows)


@command
def scaling(
    classes: Classes = 10,
    small: Annotated[list[float] | None, typer.Option(help="Small scale; may be repeated.")] = None,
    large: Annotated[list[float] | None, typer.Option(help="Large scale; may be repeated.")] = None,
    starts: Annotated[int, typer.Option(help="Random starts per scale. Their median is fitted.")] = 3,
    tolerance: Annotated[
        float, typer.Option(help="How far cosines may be from collapse, the same for all scales.")
    ] = 0.0035,
    max_steps: Annotated[int, typer.Option(help="Give up after this many steps.", min=1)] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the starts.")] = 0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Gradient steps to collapse on spheres by scale, with fitted and predicted laws, for ce and bce.

    Small scales run at learning rate 1, large ones at 0.05. JSON: {"steps": [rows], "fits": [rows]}. A scale that did
    not collapse in time has null.
    """
    from lastlayer.cli.theory_output import draw, show, tracked
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
        row: dict[str, Any] = {"loss": loss, "regime": regime}
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
    titles = {
        "steps": f"Steps to collapse, {classes} classes (median of {starts})",
        "fits": "Laws: power p of 1/scale^p for small scales, exponent b for large ones",
    }
    show({"steps": rows, "fits": fits}, as_json, titles)
    draw(plot, "scaling", rows)
