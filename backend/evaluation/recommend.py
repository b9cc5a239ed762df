"""The smallest valid method, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backend.evaluation.study import COMPARED
from backend.evaluation.tables import at, mean


@dataclass(frozen=True)
class Recommendation:
    """A method for SURESPAN_METHOD with the figures that speak for it."""

    method: str
    alpha: str
    size: float
    coverage: float
    reason: str


def recommend(results: dict[str, Any], *, alpha: str, laws: Sequence[str]) -> Recommendation:
    """Choose the exact method with the smallest mean of min(size, 1000) at level alpha, with strata.

    Valid: exact by theory, and no pool of the first split falls below the beta-binomial law, family-wise 1 %, at any
    of the levels `laws`. Integrated sets are counted among 100 labelings only, so they are compared with the others
    where every size fits, by the mean of min(size, 100).
    """
    candidates: list[tuple[float, str]] = []
    refused: list[str] = []
    for name, worth in COMPARED.items():
        records = results[f"{name}|strata"]
        if worth != "exact":
            continue
        tests = [law["below"] for a in laws for r in at(records, a) if "laws" in r for law in r["laws"]]
        if tests and min(tests) < 0.01 / len(tests):
            refused.append(name)
            continue
        if not name.startswith("integrated"):
            candidates.append((mean(at(records, alpha), "mean_1000"), name))
    if not candidates:
        return Recommendation("nc1", alpha, float("nan"), float("nan"), "no exact method passed its law on these data")
    size, chosen = min(candidates)
    own = at(results[f"{chosen}|strata"], alpha)
    plain = mean(at(results["nc1|strata"], alpha), "mean_1000")
    saved = "the same as nc1" if chosen == "nc1" else f"nc1: {plain:.2f}"
    text = (
        f"{chosen} has the smallest sets of all exact methods at target {1 - float(alpha):g}: mean of min(size, 1000) "
        f"{size:.2f} ({saved}), coverage {mean(own, 'coverage'):.4f}, open {mean(own, 'open'):.1%}, "
        f"empty {mean(own, 'empty'):.1%}; no pool falls below its beta-binomial law."
    )
    if refused:
        text += f" Not considered, because a pool fell below its law: {', '.join(refused)}."
    return Recommendation(chosen, alpha, size, mean(own, "coverage"), text)
