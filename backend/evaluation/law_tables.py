"""Coverage of one split against its law: per language, length and class, and every cell of any method below target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.evaluation.collect import coverage_law, tails
from backend.evaluation.study import COMPARED
from backend.evaluation.tables import TWO_SIDED, Table, at, percent, upper_tail

FAMILY = 0.01  # chance of any false alarm in a table


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
    laws: list[dict[str, Any]] = []
    for record in results["spans"]:
        if record["split"] or record["alpha"] not in alphas:
            continue
        for w, label in enumerate(record["labels"]):
            n, tasks, hits = record["n"][w], record["tasks"][w], record["hits"][w]
            if not tasks or n + 1 < 100:
                continue
            infinite = record["infinite"][w]
            below, above = tails(coverage_law(tasks, n=n, alpha=record["alpha"], infinite=infinite), hits)
            laws.append(
                {
                    "method": record["method"],
                    "group": label,
                    "alpha": record["alpha"],
                    "infinite": infinite,
                    "covered": hits,
                    "tasks": tasks,
                    "below": below,
                    "above": above,
                }
            )
    return laws


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


def every_law(results: dict[str, Any], alphas: Sequence[str]) -> list[dict[str, Any]]:
    """Return all laws of the first split: of every method in total, by pool, by language and by length, and by class.

    Each has `sets`, the method and its thresholds, and `kind` and `group`, the cell it judges.
    """
    all_laws: list[dict[str, Any]] = []
    for name in COMPARED:
        own, total = results[f"{name}|strata"], results[f"{name}|no strata"]
        all_laws += [law | {"sets": f"{name}, one threshold", "kind": "total"} for law in _pool_laws(total, alphas)]
        laws = [law | {"kind": "pool"} for law in _pool_laws(own, alphas)]
        laws += [law for kind in ("language", "length") for law in _group_laws(own, alphas, kind)]
        all_laws += [law | {"sets": f"{name}, strata"} for law in laws]
    for law in class_laws(results, alphas):
        all_laws.append(law | {"sets": f"span sets, {law['method']}", "kind": "class"})
    return all_laws


def below_target_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """List every cell of the first split that is below target, of every method, with its law."""
    return Table(
        "below-target",
        "Every cell of the first split below target, with the chance of that few covered if coverage is at target",
        ("sets", "by", "group", "target", "covered", "tasks", "coverage", "p"),
        tuple(_below(law) for law in every_law(results, alphas) if _short(law)),
        "About half of all cells are below target in any one split; a small p would say that it is not by chance.",
    )


def shortfall_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """Count, for every method and kind of cell, those of the first split below target, and show the worst."""
    rows = []
    laws = every_law(results, alphas)
    for sets, kind in dict.fromkeys((law["sets"], law["kind"]) for law in laws):
        own = [law for law in laws if (law["sets"], law["kind"]) == (sets, kind)]
        short = [law for law in own if _short(law)]
        worst = min(short, key=lambda law: float(law["below"]), default=None)
        cell = ("–",) * 4 if worst is None else _below(worst)[2:4] + _below(worst)[6:]
        rows.append((sets, kind, f"{len(own):,}", f"{len(short):,}", *cell))
    return Table(
        "below-target-counts",
        "Cells of the first split below target, by method, and the one with the least chance",
        ("sets", "by", "cells", "below target", "worst", "target", "coverage", "p"),
        tuple(rows),
        "About half of all cells are below target in any one split. p is the chance of that few covered if coverage is "
        "at target; with many cells the least p is small by chance. Every cell with its law: below-target.csv.",
    )


def _below(law: dict[str, Any]) -> tuple[str, ...]:
    share = law["covered"] / law["tasks"]
    cell = (law["sets"], law["kind"], str(law.get("group", law.get("pool"))), percent(law["alpha"]))
    return (*cell, f"{law['covered']:,}", f"{law['tasks']:,}", f"{share:.4f}", f"{law['below']:.3g}")


def _short(law: dict[str, Any]) -> bool:
    return bool(law["covered"] < (1 - float(law["alpha"])) * law["tasks"])


def _pool_laws(records: list[dict[str, Any]], alphas: Sequence[str]) -> list[dict[str, Any]]:
    return [law for alpha in alphas for r in at(records, alpha) for law in r.get("laws", [])]


def _group_laws(records: list[dict[str, Any]], alphas: Sequence[str], kind: str) -> list[dict[str, Any]]:
    laws = [law for alpha in alphas for r in at(records, alpha) for law in r.get("group_laws", [])]
    return [law for law in laws if law["kind"] == kind]


def _verdict(laws: Sequence[dict[str, Any]], *, two_sided: bool) -> tuple[str, str, str, str, str]:
    below, above = min(law["below"] for law in laws), upper_tail(laws)
    bound = FAMILY / len(laws) / (2 if two_sided else 1)
    verdict = "BELOW TARGET" if below < bound else "above its law" if two_sided and above < bound else "in line"
    return str(len(laws)), f"{below:.2g}", f"{above:.2g}", f"{bound:.2g}", verdict
