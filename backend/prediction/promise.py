"""What may be said about a set, in one sentence; the same words on the terminal, in Label Studio and on pages."""

from __future__ import annotations

from decimal import Decimal

from backend.domain.guarantee import Guarantee
from backend.prediction.prediction import Prediction
from backend.prediction.remarks import describe_unknown
from conformal.units import SEVERAL


def describe_promise(prediction: Prediction) -> str:
    """Say what the set promises, or why it promises nothing.

    The promise is over tasks (a random one of the collection, in this stratum's pool, and a random sentence of it where
    it has several), not about this one text. Labels that the model does not know are named: no set holds them.
    """
    unknown = describe_unknown(prediction.out_of_reach, blank=prediction.blank) if prediction.out_of_reach else ""
    if prediction.blank:
        return f"No promise, and no suggestion. {unknown}"
    return f"{_promise(prediction)} {unknown}".strip()


def _promise(prediction: Prediction) -> str:
    sets = prediction.sets
    several = len(sets.units) > 1
    target = _percent(Decimal(1) - Decimal(sets.alpha))
    if prediction.worth != "exact":
        return (
            f"No promise: the sets of this method are {prediction.worth}; they may hold the right labeling less often "
            f"than {target} of the time. Set SURESPAN_METHOD to an exact one, for instance nc1."
        )
    if prediction.guarantee is Guarantee.NONE:
        return (
            f"No promise: only {sets.n} calibration labels for {_pool(prediction)}, too few for {target}, so "
            f"{'the sets of such sentences are' if several else 'the set is'} open. "
            "Confirm labels, or load a labelled file with `surespan calibrate`."
        )
    basis = f"{'at least ' if several else ''}{sets.n:,} calibration labels for {_pool(prediction)}"
    if prediction.guarantee is Guarantee.BORROWED:
        return (
            f"No promise: thresholds are borrowed from the starter calibration (Wikipedia sentences; {basis}), not "
            f"from your data. Where your texts are like those, sets like this one hold the right labeling {target} of "
            "the time."
        )
    held = (
        f"At least {target} of sentences have their right labeling in their set ({basis}), if tasks are drawn at "
        "random from your collection, and a sentence at random from each; nothing is promised for the text as a whole."
        if several
        else f"In at least {target} of tasks like this one ({basis}) the right labeling is in the set, if tasks are "
        "drawn at random from your collection."
    )
    if prediction.guarantee is Guarantee.ASSISTED:
        held += " The labels were made with a prelabel in view, which can make thresholds too tight."
    if prediction.remark:
        held += f" {prediction.remark}"
    if sets.open:
        count = sum(unit.open for unit in sets.units)
        held += (
            f" Here the sets of {count} of {len(sets.units)} sentences are too large to list, so they are left open."
            if several
            else " Here the set is too large to list, so it is left open."
        )
    return held


def _pool(prediction: Prediction) -> str:
    sets = prediction.sets
    least = min(sets.units, key=lambda unit: unit.n)
    return f"{least.pool} (the least of its sentences)" if sets.pool == SEVERAL else sets.pool


def _percent(share: Decimal) -> str:
    return f"{(share * 100).normalize():f} %"
