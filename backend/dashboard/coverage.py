"""Figures of what labels said about the sets: is the guarantee holding, for whom, and how large are the sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from backend.calibration.evidence import Evidence
from backend.dashboard.charts import Estimate, count_chart, interval_chart, line_chart, stacked_chart
from backend.dashboard.figures import Column, Figure, columns
from backend.dashboard.subject import Subject
from backend.monitoring.report import coverage_report, gap_report, task_figure
from backend.monitoring.set_coverage import ADDED, KEPT, LEFT, RELABELLED, REMOVED
from backend.store.judgements import EXCLUDED, STRATUM, CoverageRow, add_up
from backend.store.overview import coverage_before, coverage_days
from conformal.monitor.coverage import clopper_pearson, confidence_sequence
from conformal.strata import EMPTY, SEEN

WORDS = {
    Evidence.BLIND.value: "without a prelabel",
    Evidence.ASSISTED.value: "prelabel in view",
    EXCLUDED: "not for calibration",
}
ROLES = {
    WORDS[Evidence.BLIND.value]: "first",
    WORDS[Evidence.ASSISTED.value]: "second",
    WORDS[EXCLUDED]: "third",
}
FATES = {
    KEPT: "confirmed: the label was right",
    RELABELLED: "given another label",
    REMOVED: "removed: no entity",
    ADDED: "made an entity",
    LEFT: "left alone: no entity, as proposed",
}
NEEDS = (
    "Nothing to show yet. Figures appear as soon as people label tasks that this service has shown; the first ones "
    "come within a minute of a submitted task."
)


def over_time(subject: Subject) -> Figure:
    """Coverage so far, day by day, with an interval that may be looked at every day."""
    rows: list[tuple[Any, ...]] = []
    lines: dict[str, list[Estimate]] = {}
    days = (
        []
        if subject.model is None
        else coverage_days(
            subject.session,
            subject.project.id,
            model_id=subject.model.id,
            since=subject.since,
            alpha=subject.alpha,
        )
    )
    # Counted from the first label on, whatever is shown: a sequence that began anew each day would promise nothing.
    sums = (
        {}
        if subject.model is None
        else coverage_before(
            subject.session, subject.project.id, model_id=subject.model.id, before=subject.since, alpha=subject.alpha
        )
    )
    for day, kind, judged, covered in days:
        before = sums.get(kind, (0, 0))
        so_far = sums[kind] = (before[0] + judged, before[1] + covered)
        low, high = confidence_sequence(so_far[1], so_far[0])
        share = so_far[1] / so_far[0]
        rows.append((day, _word(kind), judged, covered, share, low, high, subject.target))
        if kind != EXCLUDED:
            lines.setdefault(_word(kind), []).append(Estimate(day, share, low, high))
    return Figure(
        "coverage-over-time",
        "Live coverage over time",
        f"Share of labels that the set contained, counted from the first label on, for sets served at alpha "
        f"{subject.alpha}; the band holds the true share on all days at once with probability 95 %, so it may be "
        "looked at daily. Only labels made without a prelabel say whether the promise holds.",
        columns(
            "Day",
            "Labels made",
            "Labels",
            "Held by the set",
            "Coverage so far",
            "95 % from",
            "95 % to",
            "Target",
            count=[2, 3],
            share=[4, 5, 6, 7],
        ),
        tuple(rows),
        NEEDS,
        chart=line_chart(lines, target=subject.target, roles=ROLES),
    )


def by_worth(subject: Subject) -> Figure:
    """Coverage by what was promised for the sets: only own and assisted ones promise anything."""
    tasks = _tasks(subject)
    rows = []
    for guarantee, kind in sorted({(row.guarantee, row.kind) for row in tasks}):
        figure = task_figure(add_up(row for row in tasks if (row.guarantee, row.kind) == (guarantee, kind)))
        rows.append((guarantee, _word(kind), *_coverage(figure)))
    return Figure(
        "coverage-by-guarantee",
        "Coverage by what was promised",
        "Sets marked borrowed or none promise nothing, however well they do; own ones promise the target for labels "
        "made without a prelabel.",
        (Column("Guarantee"), Column("Labels made"), *_COVERAGE),
        tuple(rows),
        NEEDS,
    )


def by_language(subject: Subject) -> Figure:
    """Coverage by language."""
    return _grouped(
        subject,
        "languages",
        "language",
        "coverage-by-language",
        "Live coverage by language",
        "Bars are exact 95 % intervals for one look; few labels give long bars. Languages with too few labels share a "
        "threshold with others, so a single one may lie below the target where the pool does not.",
    )


def by_length(subject: Subject) -> Figure:
    """Coverage by length."""
    return _grouped(
        subject,
        "lengths",
        "length",
        "coverage-by-length",
        "Live coverage by length",
        "Length is counted in tokens; a dash joins the shortest and the longest of a group. Intervals are exact 95 % "
        "ones for one look.",
    )


def by_class(subject: Subject) -> Figure:
    """How often an entity's class was among its span's labels."""
    rows: list[tuple[Any, ...]] = []
    points: dict[str, list[Estimate]] = {}
    for each in coverage_report(subject.rows)["classes"]:
        entities, covered = each["entities"], each["covered"]
        low, high = clopper_pearson(covered, entities)
        rows.append((each["class"], _word(each["kind"]), entities, covered, each["coverage"], low, high))
        if entities and each["kind"] != EXCLUDED:
            points.setdefault(_word(each["kind"]), []).append(Estimate(each["class"], each["coverage"], low, high))
    return Figure(
        "coverage-by-class",
        "Live coverage by class",
        "Of the entities that people confirmed, the share whose class was among the labels that their span could "
        "carry; intervals treat entities of one text as independent, so they are a little too short.",
        columns(
            "Class",
            "Labels made",
            "Entities",
            "Class in the span's set",
            "Coverage",
            "95 % from",
            "95 % to",
            count=[2, 3],
            share=[4, 5, 6],
        ),
        tuple(rows),
        NEEDS,
        chart=interval_chart(points, target=subject.target, roles=ROLES),
    )


def shown(subject: Subject) -> Figure:
    """Coverage of the labelings that were listed."""
    rows = []
    for kind, each in coverage_report(subject.rows)["whole"].items():
        if each["judged"]:
            interval = clopper_pearson(each["shown"], each["judged"])
            share = each["shown"] / each["judged"]
            rows.append((_word(kind), each["judged"], each["coverage"], share, *interval))
    return Figure(
        "coverage-of-shown",
        "Coverage of the labelings shown",
        f"Annotators see at most {subject.settings.max_shown} labelings of a set; the promise is about the whole set, "
        "so this share may be smaller.",
        columns(
            "Labels made",
            "Labels",
            "In the whole set",
            "Among those shown",
            "95 % from",
            "95 % to",
            count=[1],
            share=[2, 3, 4, 5],
        ),
        tuple(rows),
        NEEDS,
    )


def documents(subject: Subject) -> Figure:
    """Coverage of all sentences and of whole texts, beside the promise about one drawn sentence a task."""
    report = coverage_report(subject.rows)
    rows = []
    for kind, each in report["overall"].items():
        units, whole = report["units"][kind], report["whole"][kind]
        if each["judged"]:
            shares = (each["coverage"], units["judged"], units["coverage"], whole["judged"], whole["coverage"])
            rows.append((_word(kind), each["judged"], *shares))
    return Figure(
        "coverage-of-documents",
        "Sentences and whole texts",
        "A text of several sentences has a set for each. The promise is about one sentence of each task and pool, "
        "drawn by lot; all sentences together, and texts all of whose sets held the label, are counted beside it "
        "without a promise.",
        columns(
            "Labels made",
            "Drawn sentences",
            "Covered",
            "All sentences",
            "Covered",
            "Whole texts",
            "Covered",
            count=[1, 3, 5],
            share=[2, 4, 6],
        ),
        tuple(rows),
        NEEDS,
    )


def sizes(subject: Subject) -> Figure:
    """Sizes of the sets, by language."""
    tasks = _tasks(subject)
    rows, names = [], []
    parts: dict[str, list[float]] = {"one labeling": [], "several": [], "empty": [], "open": []}
    groups: list[tuple[str, Iterable[CoverageRow]]] = [("all", tasks)] if tasks else []
    groups += [
        (name, [row for row in tasks if _language(row) == name]) for name in sorted({_language(row) for row in tasks})
    ]
    for name, mine in groups:
        sums = add_up(mine)
        if not sums["tasks"]:
            continue
        total, single, empty, is_open = sums["tasks"], sums["singleton"], sums["empty"], sums["open"]
        several = total - single - empty - is_open
        mean = task_figure(sums)["mean_size"]
        rows.append((name, total, single / total, several / total, empty / total, is_open / total, mean))
        names.append(name)
        for part, count in zip(parts, (single, several, empty, is_open), strict=True):
            parts[part].append(count / total)
    return Figure(
        "set-sizes",
        "Sizes of the sets",
        "A set of one labeling leaves no doubt at this alpha; an empty one says that the text is unlike those "
        "labelled; an open one could not be closed, because of too few labels or too many possible labelings.",
        columns(
            "Language",
            "Labelled tasks",
            "One labeling",
            "Several",
            "Empty",
            "Open",
            "Mean size of closed sets",
            count=[1],
            share=[2, 3, 4, 5],
            number=[6],
        ),
        tuple(rows),
        NEEDS,
        chart=stacked_chart(parts, names),
    )


def flags(subject: Subject) -> Figure:
    """Show what became of the spans marked in amber."""
    counts = coverage_report(subject.rows)["flags"]
    total = sum(counts.values())
    rows = tuple((FATES.get(name, name), count, count / total) for name, count in counts.items() if total)
    return Figure(
        "flags",
        "What became of amber spans",
        "If most are kept as they were, the marks cost more looks than they find errors: a larger SURESPAN_MAX_ERROR "
        "(with SURESPAN_FLAGS=sets a larger alpha) gives fewer.",
        columns("Outcome", "Spans", "Share", count=[1], share=[2]),
        rows,
        "Nothing to show yet. Counts appear when tasks with amber spans have been labelled; that needs a label config "
        "with a control for doubtful spans (`surespan connect` offers it).",
        chart=count_chart({str(row[0]): int(row[1]) for row in rows}),
    )


def gap(subject: Subject) -> Figure:
    """How much the prelabel sways people."""
    report = gap_report(subject.rows)
    rows = []
    for kind in (Evidence.ASSISTED.value, Evidence.BLIND.value):
        total, accepted = report[kind]["total"], report[kind]["accepted"]
        if total:
            low, high = clopper_pearson(accepted, total)
            rows.append((_word(kind), total, accepted, accepted / total, low, high))
    lead = f"{report['sentence']} {report['advice']}" if rows else ""
    return Figure(
        "anchoring-gap",
        "Anchoring: does the prelabel sway people?",
        "If people keep the best labeling more often when they see it than they choose it without, labels made in its "
        "view are biased towards the model, and thresholds based on them are too tight.",
        columns(
            "Labels made",
            "Labels",
            "Equal to the best labeling",
            "Share",
            "95 % from",
            "95 % to",
            count=[1, 2],
            share=[3, 4, 5],
        ),
        tuple(rows),
        "Nothing to show yet. It needs labels made with a prelabel in view and labels of blind tasks, which are shown "
        "blank.",
        lead=lead,
    )


_COVERAGE = columns(
    "Labels", "Held by the set", "Coverage", "95 % from", "95 % to", count=[0, 1], share=[2, 3, 4],
)  # fmt: skip


def _coverage(figure: Mapping[str, Any]) -> tuple[Any, ...]:
    low, high = figure["interval_95"] or (None, None)
    return figure["judged"], figure["covered"], figure["coverage"], low, high


def _grouped(subject: Subject, group: str, what: str, name: str, title: str, note: str) -> Figure:
    rows: list[tuple[Any, ...]] = []
    points: dict[str, list[Estimate]] = {}
    groups = coverage_report(subject.rows)[group]
    for each in sorted(groups, key=lambda one: _place(one[what])):
        rows.append((each[what], _word(each["kind"]), *_coverage(each)))
        if each["judged"] and each["kind"] != EXCLUDED:
            low, high = each["interval_95"]
            points.setdefault(_word(each["kind"]), []).append(Estimate(each[what], each["coverage"], low, high))
    return Figure(
        name,
        title,
        note,
        (Column(what.capitalize()), Column("Labels made"), *_COVERAGE),
        tuple(rows),
        NEEDS,
        chart=interval_chart(points, target=subject.target, roles=ROLES),
    )


def _place(name: str) -> tuple[int, str]:
    """Sort lengths by number."""
    digits = "".join(c for c in name.split("-", maxsplit=1)[0] if c.isdigit())
    return (int(digits) if digits else 0), name


def _tasks(subject: Subject) -> Sequence[CoverageRow]:
    return [row for row in subject.rows if row.scope == STRATUM and row.name != EMPTY]


def _language(row: CoverageRow) -> str:
    return "seen in training" if row.name == SEEN else row.name.split("/")[0]


def _word(kind: str) -> str:
    return WORDS.get(kind, kind)


MAKERS: dict[str, Callable[[Subject], Figure]] = {
    "coverage-over-time": over_time,
    "coverage-by-language": by_language,
    "coverage-by-length": by_length,
    "coverage-by-class": by_class,
    "coverage-by-guarantee": by_worth,
    "coverage-of-shown": shown,
    "coverage-of-documents": documents,
    "set-sizes": sizes,
    "flags": flags,
    "anchoring-gap": gap,
}
