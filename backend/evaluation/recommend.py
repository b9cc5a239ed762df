"""The smallest valid method, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from backend.evaluation.study import COMPARED, TUNING_SHARE
from backend.evaluation.tables import at, mean
from conformal.scores import Method

N_MIN = 100  # calibration texts that a threshold of its own takes (SURESPAN_N_MIN)
MOSTLY_OPEN = 0.9  # a share of open sets above which sizes say nothing


@dataclass(frozen=True)
class Recommendation:
    """A method for SURESPAN_METHOD with the figures that speak for it."""

    method: str
    alpha: str
    size: float
    coverage: float
    reason: str


def texts_needed(alpha: str) -> int:
    """Return how many texts give one threshold in a split: a part tunes, half of the rest calibrates.

    >>> texts_needed("0.05"), texts_needed("0.001")
    (250, 2498)
    """
    calibration = max(N_MIN, ceil(round(1 / float(alpha), 9)) - 1)
    return ceil(round(2 * calibration / (1 - TUNING_SHARE), 9))


def recommend(results: dict[str, Any], *, alpha: str, laws: Sequence[str]) -> Recommendation:
    """Choose the exact method with the smallest mean of min(size, 1000) at level alpha, with strata; nc1 among equals.

    Valid: exact by theory, and no pool of the first split falls below the beta-binomial law, family-wise 1 %, at any
    of the levels `laws`. Integrated sets are counted among 100 labelings only and are not considered. Where no pool
    has enough texts for a law, or nearly all sets are open, nothing speaks for another method than nc1.
    """
    candidates: list[tuple[float, bool, str]] = []
    refused: list[str] = []
    tested = 0
    for name, worth in COMPARED.items():
        if worth != "exact" or not Method(name).makes_heads:
            continue
        records = results[f"{name}|strata"]
        tests = [law["below"] for a in laws for r in at(records, a) if "laws" in r for law in r["laws"]]
        tested += len(tests)
        if tests and min(tests) < 0.01 / len(tests):
            refused.append(name)
        elif tests and mean(at(records, alpha), "open") < MOSTLY_OPEN:
            candidates.append((mean(at(records, alpha), "mean_1000"), name != "nc1", name))
    target = f"{1 - float(alpha):g}"
    plain = at(results["nc1|strata"], alpha)
    if not candidates:
        if not tested:
            why = "no pool has enough texts to be judged"
        elif refused:
            why = f"these fell below their laws: {', '.join(refused)}; of the others nearly all sets are open"
        else:
            why = f"nearly all sets are open at target {target} ({mean(plain, 'open'):.0%} of nc1's)"
        text = (
            f"nc1, the default, as there is too little evidence: {why}. A threshold at target {target} takes about "
            f"{texts_needed(alpha)} labelled texts that the model was not trained on, one for each language and length "
            "about as many of each."
        )
        return Recommendation("nc1", alpha, float("nan"), float("nan"), text)
    size, _, chosen = min(candidates)
    own = at(results[f"{chosen}|strata"], alpha)
    saved = "the default" if chosen == "nc1" else f"nc1: {mean(plain, 'mean_1000'):.2f}"
    text = (
        f"{chosen} has the smallest sets of all exact methods at target {target}: mean of min(size, 1000) "
        f"{size:.2f} ({saved}), coverage {mean(own, 'coverage'):.4f}, open {mean(own, 'open'):.1%}, "
        f"empty {mean(own, 'empty'):.1%}; no pool falls below its beta-binomial law."
    )
    if refused:
        text += f" Not considered, because a pool fell below its law: {', '.join(refused)}."
    return Recommendation(chosen, alpha, size, mean(own, "coverage"), text)
