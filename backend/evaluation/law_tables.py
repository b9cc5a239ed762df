"""Coverage of one split against its law: per language, per length, per class, and every cell below target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.evaluation.collect import coverage_law, tails
from backend.evaluation.study import COMPARED
from backend.evaluation.tables import TWO_SIDED, Table, at, percent, upper_tail

FAMILY = 0.01  # chance of any false alarm in a table
HELD = ("nc1", "logrank+nc1")  # methods whose cells below target are listed one by one


def group_law_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """Every method with strata, by language and by length: the sum of a group's pools against its law."""
    rows = []
    for name, worth in COMPARED.items():
        for kind in ("language", "length"):
            laws = _group_laws(results[f"{name}|strata"], alphas, kind)
            if laws:
                rows.append((name, worth, kind, *_verdict(laws, two_sided=name in TWO_SIDED)))
    return Table(
        "laws-groups",
        "Coverage of one split by language and by length, with strata, against its law; levels 0.8 to 0.975",
        ("method", "worth", "by", "tests", "least p, below", "least p, above", "family-wise bound 1 %", "verdict"),
        tuple(rows),
        "Pools are calibrated apart, so a group's law is the convolution of its pools' beta-binomial laws.",
    )


def class_laws(results: dict[str, Any], alphas: Sequence[str]) -> list[dict[str, Any]]:
    """Return, for each span method, class and level, the covered entities of the first split with both tails.

    One entity is drawn from each test task that has the class. Hierarchical thresholds average over the entities of a
    calibration task, so their coverage varies no more than with one drawn entity each: the beta-binomial law of the
    number of calibration tasks is wide enough. Pooled ones have no such law and are shown to compare.
    """
    found: list[dict[str, Any]] = []
    for record in results["spans"]:
        if record["split"] or record["alpha"] not in alphas:
            continue
        for w, label in enumerate(record["labels"]):
            n, tasks, hits = record["n"][w], record["tasks"][w], record["hits"][w]
            if not tasks or n + 1 < 100:
                continue
            below, above = tails(coverage_law(tasks, n=n, alpha=record["alpha"]), hits)
            found.append(
                {
                    "method": record["method"],
                    "group": label,
                    "alpha": record["alpha"],
                    "covered": hits,
                    "tasks": tasks,
                    "below": below,
                    "above": above,
                }
            )
    return found


def class_law_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """Show subsequence sets per class against their law, on the lower side."""
    laws = class_laws(results, alphas)
    rows = []
    for method in dict.fromkeys(law["method"] for law in laws):
        own = [law for law in laws if law["method"] == method]
        rows.append((method, *_verdict(own, two_sided=False)))
    return Table(
        "laws-classes",
        "Span sets per class (and O) against the law of one split; levels 0.8 to 0.975",
        ("method", "tests", "least p, below", "least p, above", "family-wise bound 1 %", "verdict"),
        tuple(rows),
        "One entity drawn from each test task that has the class; lower side only. Pooled weights are approximate.",
    )


def below_target_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """List every language, length, class and total of the first split that is below target, with its law."""
    rows = []
    for name in HELD:
        for strata in ("strata", "no strata"):
            if strata == "strata":
                laws = [
                    law
                    for kind in ("language", "length")
                    for law in _group_laws(results[f"{name}|strata"], alphas, kind)
                ]
            else:
                laws = [
                    law | {"kind": "total", "group": "all"} for law in _pool_laws(results[f"{name}|no strata"], alphas)
                ]
            rows += [_below(f"{name}, {strata}", law["kind"], law) for law in laws if _short(law)]
    spans = [law for law in class_laws(results, alphas) if law["method"] == "nc1, hierarchical" and _short(law)]
    rows += [_below("span sets, nc1", "class", law) for law in spans]
    return Table(
        "below-target",
        "Every cell of the first split below target, with the chance of that few covered if coverage is at target",
        ("sets", "by", "group", "target", "covered", "tasks", "coverage", "p"),
        tuple(rows),
        "About half of all cells are below target in any one split; a small p would say that it is not by chance.",
    )


def _below(sets: str, kind: str, law: dict[str, Any]) -> tuple[str, ...]:
    share = law["covered"] / law["tasks"]
    counts = (f"{law['covered']:,}", f"{law['tasks']:,}")
    return (sets, kind, str(law["group"]), percent(law["alpha"]), *counts, f"{share:.4f}", f"{law['below']:.3g}")


def _short(law: dict[str, Any]) -> bool:
    return bool(law["covered"] < (1 - float(law["alpha"])) * law["tasks"])


def _pool_laws(records: list[dict[str, Any]], alphas: Sequence[str]) -> list[dict[str, Any]]:
    return [law for alpha in alphas for r in at(records, alpha) for law in r.get("laws", [])]


def _group_laws(records: list[dict[str, Any]], alphas: Sequence[str], kind: str) -> list[dict[str, Any]]:
    found = [law for alpha in alphas for r in at(records, alpha) for law in r.get("group_laws", [])]
    return [law for law in found if law["kind"] == kind]


def _verdict(laws: Sequence[dict[str, Any]], *, two_sided: bool) -> tuple[str, str, str, str, str]:
    below, above = min(law["below"] for law in laws), upper_tail(laws)
    bound = FAMILY / len(laws) / (2 if two_sided else 1)
    verdict = "BELOW TARGET" if below < bound else "above its law" if two_sided and above < bound else "in line"
    return str(len(laws)), f"{below:.2g}", f"{above:.2g}", f"{bound:.2g}", verdict
