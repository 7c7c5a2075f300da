"""Claims 12 to 17 of the paper on normalized spaces: long tail, open set, final ReLU, spread biases, balanced data."""

from __future__ import annotations

from lastlayer.papers._claims import check
from lastlayer.papers._evidence import Verdict, above, all_of, exact, paired, redrawn, sign_test, welch
from lastlayer.papers._normalized_scaling_cells import LOSSES, PAPER, Values, combinations, mean, spell
from lastlayer.papers._observations import NotRunError, Store


@check("003-12", "normalized_scaling.table2")
def long_tail(store: Store) -> Verdict:
    """BCE above CE in balanced test accuracy at every imbalance, 95 % over seeds; logit adjustment beside it."""
    observed = store.evidence(f"{PAPER}.table2")
    parts = []
    if missing := {"10", "50", "100"} - set(observed.points("imbalance")):
        raise NotRunError(f"{observed.artifact} ({observed.size}): imbalance {', '.join(sorted(missing))} was not run")
    for cell in combinations(observed, "dataset", "model", "imbalance"):
        by_loss = {loss: observed.values("test.accuracy", loss=loss, **cell) for loss in (*LOSSES, "LA")}
        found = above(welch(by_loss["BCE"], by_loss["CE"]), 0.0, f"{spell(cell)}:")
        adjusted = mean(by_loss["LA"]) - mean(by_loss["CE"])
        said = f"{found.detail} (LA {adjusted:+.4g})"
        parts.append(Verdict(found.outcome, said, found.difference, found.interval))
    return all_of(parts)


def _open_set(store: Store, measure: str, **labels: str) -> Values:
    return store.evidence(f"{PAPER}.table10").values(f"test.{measure}", split="all", **labels)


@check("003-13", "normalized_scaling.table10")
def open_set(store: Store) -> Verdict:
    """With a bias BCE above CE in AUROC and OSCR, paired over splits: sign test and 95 % interval."""
    parts = []
    for dataset in store.evidence(f"{PAPER}.table10").points("dataset"):
        for bias in ("0", "5", "10"):
            for measure in ("auroc", "oscr"):
                ce, bce = (_open_set(store, measure, dataset=dataset, bias=bias, loss=loss) for loss in LOSSES)
                found = above(paired(bce, ce), 0.0, f"{dataset} {bias} {measure}:")
                signs = sign_test(bce[split] - ce[split] for split in bce.keys() & ce.keys())
                if found.outcome == "reproduced" and signs > 0.05:
                    said = f"{found.detail}, sign test {signs:.3f}"
                    found = Verdict("inconclusive", said, found.difference, found.interval)
                parts.append(found)
    return all_of(parts)


@check("003-14", "normalized_scaling.table10")
def without_bias(store: Store) -> Verdict:
    """Without a bias BCE's AUROC falls three points below its own with one, and below CE's, paired over splits."""
    parts = []
    for dataset in store.evidence(f"{PAPER}.table10").points("dataset"):
        bare, with_bias = (_open_set(store, "auroc", dataset=dataset, bias=b, loss="BCE") for b in ("none", "0"))
        other = _open_set(store, "auroc", dataset=dataset, bias="none", loss="CE")
        parts.append(above(paired(with_bias, bare), 0.03, f"{dataset}: BCE with - without bias"))
        parts.append(above(paired(other, bare), 0.0, f"{dataset}: CE - BCE without bias"))
    return all_of(parts)


@check("003-15", "normalized_scaling.relu")
def final_relu(store: Store) -> Verdict:
    """Mean positive score below 0.98 of the scale with a final ReLU, at least 0.99 of it without."""
    observed = store.evidence(f"{PAPER}.relu")
    parts = []
    for arm in combinations(observed, "optimizer", "loss"):
        groups = [
            [score / 8 for score in observed.values("train.positive_mean", relu=relu, **arm).values()]
            for relu in ("with", "without")
        ]
        kept, without = (sum(group) / len(group) for group in groups)
        said = f"{spell(arm)}: s+ / gamma {kept:.4f} with, {without:.4f} without"
        parts.append(redrawn(lambda means: means[0] < 0.98 and means[1] >= 0.99, groups, said))
    return all_of(parts)


@check("003-16", "normalized_scaling.fig8")
def spread_biases(store: Store) -> Verdict:
    """Spread of both scores lower for BCE at bias variances 1, 4 and 6, scale 8: sign test over variance and seed."""
    observed = store.evidence(f"{PAPER}.fig8")
    parts = []
    for sign in ("positive", "negative"):
        differences = []
        for arm in combinations(observed, "optimizer"):
            for variance in ("1", "4", "6"):
                ce, bce = (
                    observed.values(f"train.{sign}_std", gamma="8", variance=variance, loss=loss, **arm)
                    for loss in LOSSES
                )
                differences += [ce[seed] - bce[seed] for seed in sorted(ce.keys() & bce.keys())]
        better, worse = sign_test(differences), sign_test(-d for d in differences)
        said = f"{sign} std lower for BCE in {sum(d > 0 for d in differences)} of {len(differences)}, p {better:.3g}"
        parts.append(exact(better < 0.05, said) if min(better, worse) < 0.05 else Verdict("inconclusive", said))
    return all_of(parts)


@check("003-17", "normalized_scaling.table9")
def balanced(store: Store) -> Verdict:
    """On each data set the lower 95 % limit of BCE - CE above -0.3 points, paired over network, optimiser and seed."""
    observed = store.evidence(f"{PAPER}.table9")
    parts = []
    for dataset in observed.points("dataset"):
        by_loss: dict[str, dict[int, float]] = {loss: {} for loss in LOSSES}
        for number, arm in enumerate(combinations(observed, "model", "optimizer")):
            for loss in LOSSES:
                for seed, value in observed.values("test.accuracy", dataset=dataset, loss=loss, **arm).items():
                    by_loss[loss][1000 * number + seed] = value
        parts.append(above(paired(by_loss["BCE"], by_loss["CE"]), -0.003, f"{dataset}: BCE - CE"))
    return all_of(parts)
