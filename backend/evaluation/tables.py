"""Tables of an evaluation, in the shape of the paper's: Markdown for people, CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backend.evaluation.study import COMPARED
from conformal.scores import Method

# Scores without ties or atoms: their coverage is held to the law on both sides, the others' on the lower side.
TWO_SIDED = ("nc1", "nc2", "logrank+nc1", "raps+nc1", "raps+nc2", "joint+nc1", "joint+nc2", "integrated+nc1")

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Table:
    """A table with its title, a note that says how to read it, and a name for files."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [f"### {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        lines.append("| " + " | ".join(self.header) + " |")
        lines.append("|" + "---|" * len(self.header))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Return the table as CSV."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return buffer.getvalue()


def at(records: Records, alpha: str) -> Records:
    """Return the records of one level."""
    return [record for record in records if record["alpha"] == alpha]


def average(values: Sequence[float]) -> float:
    """Return the mean of the numbers among these, NaN if there is none."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of the numbers among these, NaN if there is none."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.std(known)) if known else float("nan")


def mean(records: Records, name: str) -> float:
    """Return the mean over splits."""
    return average([record[name] for record in records])


def spread(records: Records, name: str) -> float:
    """Return the standard deviation over splits; they overlap, so it is not divided by a root."""
    return deviation([record[name] for record in records])


def percent(level: str) -> str:
    """Return the target of a level: 0.05 becomes 0.95."""
    return f"{1 - float(level):g}"


def number(value: float, digits: int = 3) -> str:
    """Return a figure with some digits, a dash for none."""
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


def method_table(results: dict[str, Any], alphas: Sequence[str], *, strata: bool) -> Table:
    """Every full-sequence method at every level (METHODS 9)."""
    rows = []
    for name, worth in COMPARED.items():
        records = results[f"{name}|{'strata' if strata else 'no strata'}"]
        for alpha in alphas:
            own = at(records, alpha)
            rows.append(
                (
                    name,
                    worth,
                    percent(alpha),
                    f"{mean(own, 'coverage'):.4f} ± {spread(own, 'coverage'):.4f}",
                    number(mean(own, "mean"), 2),
                    number(mean(own, "median"), 1),
                    number(mean(own, "mean_100"), 2),
                    number(mean(own, "mean_1000"), 2),
                    number(mean(own, "singletons")),
                    number(mean(own, "empty")),
                    number(mean(own, "open")),
                    number(mean(own, "worst_gap")),
                    number(mean(own, "shown_coverage")),
                )
            )
    where = "thresholds per identified language and length" if strata else "one threshold for all"
    return Table(
        f"methods-{'strata' if strata else 'no-strata'}",
        f"All methods, {where}",
        (
            "method",
            "worth",
            "target",
            "coverage",
            "mean size",
            "median",
            "mean min(size,100)",
            "mean min(size,1000)",
            "singletons",
            "empty",
            "open",
            "worst stratum gap",
            "coverage of first 5",
        ),
        tuple(rows),
        "Coverage is mean ± spread over random splits. Mean and median are of closed sets as shown (at least y(1)); "
        "the capped means count open sets as full. Coverage is that of the whole set. Members of integrated sets are "
        "counted among the 100 best labelings only, and such a set counts as open if it is known to reach beyond them; "
        "other members beyond are not counted: see the table of integrated sets.",
    )


RECOMMENDED = "logrank+nc1"


def size_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """Compare the recommended method with the smallest of the paper's at each level: one threshold, same emissions."""
    theirs = {name.replace("|", ", "): records for name, records in results.items() if "|top " in name}
    rows = []
    for alpha in alphas:
        best = min(theirs, key=lambda each: mean(at(theirs[each], alpha), "mean_1000"))
        records = (at(results[f"{RECOMMENDED}|no strata"], alpha), at(theirs[best], alpha))
        shown = (("mean_1000", 3), ("coverage", 4), ("open", 3), ("empty", 3))
        cells = [[number(mean(own, name), digits) for name, digits in shown] for own in records]
        theirs_size = mean(records[1], "mean_1000")
        ratio = mean(records[0], "mean_1000") / theirs_size
        name, size = min(((each, _exact_size(results, each, alpha)) for each in _OURS), key=lambda pair: pair[1])
        smallest = (name, number(size, 3), f"{size / theirs_size:.3f}")
        rows.append((percent(alpha), *cells[0], best, *cells[1], f"{ratio:.3f}", *smallest))
    what = ("mean min(size,1000)", "coverage", "open", "empty")
    return Table(
        "sizes",
        f"Full-sequence sizes: {RECOMMENDED} (exact, exact probabilities) and the smallest of the paper's in its "
        "convention (100 best)",
        ("target", *what, "paper's", *what, "ratio", "smallest exact", "mean min(size,1000)", "ratio"),
        tuple(rows),
        "One threshold for all, the same emissions and splits. A ratio below 1: ours is smaller. The last columns: the "
        "smallest of all exact methods at that level.",
    )


_OURS = [name for name, worth in COMPARED.items() if worth == "exact" and Method(name).makes_heads]


def _exact_size(results: dict[str, Any], name: str, alpha: str) -> float:
    return mean(at(results[f"{name}|no strata"], alpha), "mean_1000")


_FULL = {"naive": "naive+{}", "RAPS": "raps+{}", "conditional": "conditional+{}"}


def set_type_table(results: dict[str, Any], alpha: str) -> Table:
    """Show scores and combinations x set type: the shape of the paper's two tables of index-based methods."""
    lines = [(base, base, f"{base}, hierarchical", f"int. {base}, Šidák") for base in ("nc1", "nc2", "nc3")]
    lines += [
        (f"{title} + {base}", own.format(base), f"{own.format(base)}, hierarchical", f"int. {title}+{base}, Šidák")
        for title, own in _FULL.items()
        for base in ("nc1", "nc2")
    ]
    rows = []
    for title, full, spans, joined in lines:
        whole, parts = at(results[f"{full}|strata"], alpha), at(results[joined], alpha)
        held = [r["overall"] for r in results["spans"] if r["method"] == spans and r["alpha"] == alpha]
        rows.append(
            (
                title,
                number(mean(whole, "coverage"), 4),
                number(mean(whole, "mean_100"), 3),
                number(average([c for c, _ in held]), 4),
                number(average([s for _, s in held]), 4),
                number(mean(parts, "coverage"), 4),
                number(mean(parts, "mean_100"), 3),
            )
        )
    return Table(
        "set-types",
        f"Scores and set types, target {percent(alpha)}",
        ("score", "full: cov.", "size", "subsequence: cov.", "size", "integrated (paper's): cov.", "size"),
        tuple(rows),
        "Full: strata, exact, mean of min(size,100). Subsequence: every true entity counted alike, labels with O.",
    )


def breakdown_table(results: dict[str, Any], kind: str, alpha: str) -> Table:
    """Without and with strata, by group: the paper's length and language tables."""
    plain, own = at(results["nc1|no strata"], alpha), at(results["nc1|strata"], alpha)
    target = 1 - float(alpha)
    groups = list(own[0][kind])
    rows = []
    for group in groups:
        row = [group, percent(alpha), f"{own[0][kind][group]['tasks']:,}"]
        for records in (plain, own):
            cells = [record[kind][group] for record in records if group in record[kind]]
            gap = average([cell["coverage"] for cell in cells]) - target
            size = average([cell["size"] for cell in cells])
            row += [f"**{gap:+.4f}**" if gap < 0 else f"{gap:+.4f}", f"{size:.3f}"]
        rows.append(tuple(row))
    return Table(
        f"by-{kind}",
        f"nc1 by {kind}: one threshold, and strata",
        (
            kind,
            "target",
            "test tasks",
            "no strata: emp. - target",
            "mean min(size,100)",
            "strata: emp. - target",
            "mean min(size,100)",
        ),
        tuple(rows),
        "Bold: below target (a mean over splits; its law is in the table of laws).",
    )


def entity_count_table(results: dict[str, Any], alpha: str) -> Table:
    """Coverage and size by the number of true entities, per set type."""
    kinds = {
        "full sequence, nc1": "nc1|strata",
        "int. nc1, no Šidák": "int. nc1, no Šidák",
        "int. nc1, Šidák": "int. nc1, Šidák",
        "integrated (ours), whole set": "integrated|strata",
        "integrated (ours), listed": "integrated|strata",
        "integrated+nc1 (ours), whole set": "integrated+nc1|strata",
        "integrated+nc1 (ours), listed": "integrated+nc1|strata",
    }
    groups = ("1", "2", "3", "4", "5")
    rows = []
    for title, name in kinds.items():
        row = [title]
        for group in groups:
            cells = [record["entities"][group] for record in at(results[name], alpha) if group in record["entities"]]
            part = "listed_" if title.endswith("listed") else ""
            covered = average([cell[f"{part}coverage"] for cell in cells])
            size = average([cell[f"{part}size"] for cell in cells])
            row += [number(covered, 4), number(size, 3)]
        rows.append(tuple(row))
    header = ("sets", *(f"{group}: {what}" for group in groups for what in ("cov.", "size")))
    return Table(
        "by-entities",
        f"By number of true entities, target {percent(alpha)}",
        header,
        tuple(rows),
        "The number of true entities is not known beforehand: no method promises coverage given it. The paper's sets "
        "(int.) are within the 100 best labelings; of ours the same part (listed) is beside the whole set, which is "
        "counted as 100 where it is known to reach beyond the list.",
    )


def class_table(results: dict[str, Any], alpha: str) -> Table:
    """Coverage and size by class, per set type."""
    spans = [r for r in results["spans"] if r["alpha"] == alpha and r["method"] == "nc1, hierarchical"]
    labels = spans[0]["labels"]
    rows = []
    for title, name in (
        ("full sequence, nc1", "nc1|strata"),
        ("integrated, ours, whole set", "integrated|strata"),
        ("integrated, ours, listed", "integrated|strata"),
        ("integrated, Šidák", "int. nc1, Šidák"),
    ):
        part = "listed_" if title.endswith("listed") else ""
        row = [title]
        for label in labels[:-1]:
            cells = [record["class"][label] for record in at(results[name], alpha)]
            row += [
                number(average([c[f"{part}coverage"] for c in cells]), 4),
                number(average([c[f"{part}size"] for c in cells])),
            ]
        rows.append((*row, "–", "–"))
    for method in dict.fromkeys(r["method"] for r in results["spans"]):
        own = [r for r in results["spans"] if r["alpha"] == alpha and r["method"] == method]
        row = [f"span sets, {method}"]
        for w in range(len(labels)):
            row += [
                number(average([r["coverage"][w] for r in own]), 4),
                number(average([r["sizes"][w] for r in own])),
            ]
        rows.append(tuple(row))
    header = ("sets", *(f"{label}: {what}" for label in labels for what in ("cov.", "size")))
    return Table(
        "by-class",
        f"By class, target {percent(alpha)}",
        header,
        tuple(rows),
        "Full-sequence and integrated rows: tasks that have an entity of the class. Span sets promise it per class.",
    )


def junk_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """Sizes of the span sets of false positives."""
    rows = []
    for method in dict.fromkeys(r["method"] for r in results["spans"]):
        own = [[r["junk"] for r in results["spans"] if r["method"] == method and r["alpha"] == a] for a in alphas]
        rows.append((method, *(f"{average(v):.3f} ± {deviation(v):.3f}" for v in own)))
    return Table(
        "false-positives",
        "Classes in the span sets of false positives of the best labeling",
        ("method", *(percent(a) for a in alphas)),
        tuple(rows),
    )


def boundary_table(results: dict[str, Any]) -> Table:
    """Show the boundary-rule ablation at 0.90."""
    rows = []
    for score in ("nc1", "nc2", "nc3"):
        for rule in dict.fromkeys(r["rule"] for r in results["boundary"]):
            own = [r for r in results["boundary"] if r["score"] == score and r["rule"] == rule]
            rows.append(
                (
                    score,
                    rule,
                    f"{mean(own, 'coverage'):.4f} ± {spread(own, 'coverage'):.4f}",
                    number(mean(own, "mean_100"), 2),
                    number(mean(own, "mean_1000"), 2),
                    number(mean(own, "empty")),
                )
            )
    return Table(
        "boundary",
        "Boundary rule at target 0.9, one threshold for all",
        ("score", "rule", "coverage", "mean min(size,100)", "mean min(size,1000)", "empty"),
        tuple(rows),
        "include and smoothed are exact; early, full and paper are there for comparison.",
    )


def source_table(results: dict[str, Any], alpha: str) -> Table:
    """One row per data file: coverage and sizes of nc1 with strata."""
    own = at(results["nc1|strata"], alpha)
    rows = []
    for name in own[0]["source"]:
        cells = [record["source"][name] for record in own]
        covered = [c["coverage"] for c in cells]
        rows.append(
            (
                name,
                f"{cells[0]['tasks']:,}",
                f"{average(covered):.4f} ± {deviation(covered):.4f}",
                f"{average([c['size'] for c in cells]):.3f} ± {deviation([c['size'] for c in cells]):.3f}",
            )
        )
    return Table(
        "by-file",
        f"By benchmark file, nc1 with strata, target {percent(alpha)}",
        ("file", "test tasks", "coverage", "mean min(size,100)"),
        tuple(rows),
    )


def upper_tail(laws: Sequence[dict[str, Any]]) -> float:
    """Return the least chance of so many covered; a pool whose threshold is infinite is left out.

    It covers all of its tasks for certain, because it has too few labels or too many of them are out of reach.
    """
    return min((law["above"] for law in laws if not law["infinite"]), default=1.0)


def law_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """Show the first split of every method against its beta-binomial law."""
    rows = []
    for name, worth in COMPARED.items():
        for strata in (False, True):
            records = results[f"{name}|{'strata' if strata else 'no strata'}"]
            laws = [law for a in alphas for r in at(records, a) if "laws" in r for law in r["laws"]]
            if not laws:
                continue
            below = min(law["below"] for law in laws)
            above = upper_tail(laws)
            two_sided = name in TWO_SIDED
            bound = 0.01 / len(laws) / (2 if two_sided else 1)
            verdict = "BELOW TARGET" if below < bound else "above its law" if two_sided and above < bound else "in line"
            rows.append(
                (
                    name,
                    worth,
                    "strata" if strata else "in total",
                    str(len(laws)),
                    f"{below:.2g}",
                    f"{above:.2g}",
                    f"{bound:.2g}",
                    verdict,
                )
            )
    return Table(
        "laws",
        "Coverage of one split against its beta-binomial law, levels 0.8 to 0.975",
        ("method", "worth", "pools", "tests", "least p, below", "least p, above", "family-wise bound 1 %", "verdict"),
        tuple(rows),
        "One test per pool and level. Continuous scores are tested on both sides, the others on the lower side only.",
    )


def effort_tables(results: dict[str, Any]) -> list[Table]:
    """Show what annotators save, and orders of review."""
    effort = results["effort"]
    rows = [
        (
            percent(alpha),
            *(f"{effort['actions'][alpha][k]:.3f}" for k in ("no help", "best labeling", "ranked set")),
            *(f"{effort['flags'][alpha][k]:.3f}" for k in effort["flags"][alpha]),
        )
        for alpha in effort["actions"]
    ]
    flags = tuple(next(iter(effort["flags"].values())))
    queue = effort["queue"]
    columns = tuple(k for k in queue[0] if k != "order")
    return [
        Table(
            "effort",
            "Actions a task, nc1 with strata, at most 5 labelings shown",
            ("target", "no help", "best labeling", "ranked set", *flags),
            tuple(rows),
            "pick = 1, each add, delete, relabel or resize = 1.",
        ),
        Table(
            "queue",
            "Errors found in the first part of a review queue",
            ("order", *columns),
            tuple((row["order"], *(f"{row[c]:.3f}" for c in columns)) for row in queue),
            "tasks: share of the tasks with a wrong best labeling; actions: share of all corrections.",
        ),
    ]


def all_tables(results: dict[str, Any], alphas: Sequence[str]) -> list[Table]:
    """Return the tables of this module, in the order of the report."""
    main = "0.05" if "0.05" in alphas else alphas[0]
    middle = [a for a in alphas if a != "0.01"]
    makers: list[Callable[[], Table]] = [
        lambda: method_table(results, alphas, strata=True),
        lambda: method_table(results, alphas, strata=False),
        lambda: law_table(results, middle),
        lambda: size_table(results, alphas),
        lambda: breakdown_table(results, "length", main),
        lambda: breakdown_table(results, "language", main),
        lambda: entity_count_table(results, main),
        lambda: set_type_table(results, main),
        lambda: class_table(results, main),
        lambda: junk_table(results, alphas),
        lambda: boundary_table(results),
        lambda: source_table(results, main),
    ]
    return [make() for make in makers] + effort_tables(results)
