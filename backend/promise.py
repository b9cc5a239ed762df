"""What may be said about a set, in one sentence; the same words on the terminal, in Label Studio and on pages."""

from __future__ import annotations

from decimal import Decimal

from backend.predictor import Guarantee, Prediction


def describe(prediction: Prediction) -> str:
    """Say what the set promises, or why it promises nothing.

    The promise is over tasks (a random one of the collection, in this stratum's pool), not about this one text.
    """
    sets = prediction.sets
    target = _percent(Decimal(1) - Decimal(sets.alpha))
    if prediction.worth != "exact":
        return (
            f"No promise: the sets of this method are {prediction.worth}, they may hold the right labeling less often "
            f"than {target} of the time. Set SURESPAN_METHOD to an exact one, for instance nc1."
        )
    if prediction.guarantee is Guarantee.NONE:
        return (
            f"No promise: only {sets.n} calibration labels for {sets.pool}, too few for {target}, so the set is open. "
            "Confirm labels, or load a labelled file with `surespan calibrate`."
        )
    basis = f"{sets.n:,} calibration labels for {sets.pool}"
    if prediction.guarantee is Guarantee.BORROWED:
        return (
            f"No promise: thresholds are borrowed from the starter calibration (Wikipedia sentences; {basis}), not "
            f"from your data. Where your texts are like those, sets like this one hold the right labeling {target} of "
            "the time."
        )
    held = (
        f"In at least {target} of tasks like this one ({basis}) the right labeling is in the set, if tasks are drawn "
        "at random from your collection."
    )
    if prediction.guarantee is Guarantee.ASSISTED:
        held += " The labels were made with a prelabel in view, which can make thresholds too tight."
    if prediction.remark:
        held += f" {prediction.remark}"
    if sets.open:
        held += " Here the set is too large to list, so it is left open."
    return held


def _percent(share: Decimal) -> str:
    return f"{(share * 100).normalize():f} %"
