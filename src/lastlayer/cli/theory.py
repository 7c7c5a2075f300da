"""`lastlayer theory ...`: closed forms, the unconstrained feature model, toy dynamics, alignment, bounds, scale laws.

Every command prints tables, or with --json the same numbers, and with --plot writes a picture that opens offline.
The closed forms are here, what runs for seconds is in _theory_runs. Tests: tests/cli/test_theory.py.
"""

from typing import Annotated

import typer

from lastlayer.cli._theory_command import Classes, Json, Plot, command, draw, theory
from lastlayer.cli._theory_runs import dynamics, scaling, ufm
from lastlayer.cli._theory_tables import Row, show

__all__ = ["alignment", "bounds", "dynamics", "minima", "scaling", "theory", "ufm"]


@command
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
    from lastlayer.theory._scalar import check_count, check_nonnegative, check_positive

    # a loss without a closed form is a dash in the table; a mistake is not
    check_count("--samples", samples, least=1)
    check_positive(lambda_w=lambda_w, lambda_h=lambda_h)
    check_nonnegative(lambda_b=lambda_b)
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
    draw(plot, "minima", spheres)


@command
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
    draw(plot, "alignment", aligned)


@command
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
        titles={
            "bounds": f"{classes} classes, {what}, for {1 - delta:.0%} of them (proved: "
            f"{max(1 - 2 * delta, 0):.0%}); constant R = e^{found.log_R:.1f}"
        },
        absent="vacuous",
    )
    draw(plot, "bounds", rows)
