"""What flags with a promise leave behind and what they ask for, on labelled files (METHODS 11).

Each file is split again and again: some tasks choose the level, the others are looked at as an annotator would. Beside
it stand the flags of METHODS 6.4, a level chosen on the test tasks themselves, and an oracle that knows every error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.evaluation.decoding import P_MIN
from backend.evaluation.risk_lists import Lists, list_texts
from backend.tagger.errors import InvalidData
from backend.tagger.readers import LabelledText, join_documents, read_labelled
from backend.tagger.tagger import Tagger
from conformal.flags import flag_spans
from conformal.quantile import Bools, Floats
from conformal.risk import ErrorRows, fit_levels, place_numbers
from conformal.risk.control import greatest_level
from conformal.rows import TaskRows
from conformal.subsequence import EntityMethod, score_spans
from conformal.thresholds import calibrate

MAX_ERRORS = ("0.1", "0.05", "0.02", "0.01")
CALIBRATION = 500  # tasks that choose the level; half of the tasks where there are fewer than twice as many
FLAG_ALPHA = "0.05"  # of the flags that the controlled ones are compared with
FIGURES = ("risk", "places", "nothing", "everything", "seen", "marked")
RULES = ("controlled", "sure", "tuned on the test tasks", "oracle")
_NO_LANGUAGE = "-"
_COLUMNS = (
    *("asked for", "rule", "risk", "above", "places a task", "of tuned"),
    *("everything", "nothing to look at", "errors seen", "right spans marked"),
)

Ints = npt.NDArray[np.int64]
Figures = dict[str, float]


def read_tasks(
    path: Path, *, documents: bool, classes: Sequence[str], rows: int | None, seed: int
) -> list[LabelledText]:
    """Return a file's labelled texts, joined into documents if asked for; classes the model lacks are left out."""
    texts: Sequence[LabelledText] = read_labelled(path).texts
    texts = join_documents(texts) if documents else texts
    if rows is not None:
        chosen = np.sort(np.random.default_rng(seed).permutation(len(texts))[:rows])
        texts = [texts[i] for i in chosen.tolist()]
    known = set(classes)
    return [
        LabelledText(each.text, tuple(span for span in each.spans if span.label in known), each.language)
        for each in texts
    ]


def evaluate_risk(
    tagger: Tagger,
    texts: Sequence[LabelledText],
    *,
    splits: int = 20,
    seed: int = 0,
    max_errors: Sequence[str] = MAX_ERRORS,
    calibration: int = CALIBRATION,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Return the figures of one file; raises `InvalidData` when it has too few texts the model does not know."""
    lists = list_texts(tagger, texts, progress=progress)
    if len(lists) < 4:
        raise InvalidData(
            f"expected at least four labelled texts that are not empty and that the model was not trained on, got "
            f"{len(lists)} of {len(texts)}; give data that were kept apart when the model was trained"
        )
    return study_lists(lists, splits=splits, seed=seed, max_errors=max_errors, calibration=calibration)


def study_lists(
    lists: Lists, *, splits: int, seed: int, max_errors: Sequence[str] = MAX_ERRORS, calibration: int = CALIBRATION
) -> dict[str, Any]:
    """Return the figures of decoded texts: means over random splits, with their spread."""
    rng = np.random.default_rng([seed, 11])
    rule = LevelRule(lists, lists.doubts)
    size = min(calibration, len(lists) // 2)
    found: dict[tuple[str, str], list[Figures]] = {}
    fixed: list[Figures] = []
    for _ in range(splits):
        order = rng.permutation(len(lists))
        chosen, test = np.sort(order[:size]), np.sort(order[size:])
        known = rule.rows.take(chosen)
        for eps in max_errors:
            spoken = [_NO_LANGUAGE] * len(known)
            pool = fit_levels(known, spoken, max_error=eps, sure=True, n_min=len(lists) + 1).pool(_NO_LANGUAGE)
            levels = (pool.plain, pool.level, tuned_level(rule.rows.take(test), float(eps)))
            for name, level in zip(RULES, levels, strict=False):
                found.setdefault((eps, name), []).append(rule.figures(level, test))
            found.setdefault((eps, "oracle"), []).append(_oracle(lists, test, float(eps)))
        fixed.append(_fixed_flags(lists, rule, chosen, test))
    counted = rule.rows.counted
    return {
        "tasks": len(lists),
        "calibration": size,
        "splits": splits,
        "counted": float(counted.mean()),
        "errors": float(len(lists.errors) / len(lists)),
        "risk": float(rule.rows.losses(np.inf)[counted].mean()) if counted.any() else 0.0,
        "untouched": float((rule.rows.level == 0).mean()) if len(lists.errors) else 0.0,
        "levels": [
            {"max_error": eps, "rules": {name: _summary(found[eps, name], float(eps)) for name in RULES}}
            for eps in max_errors
        ],
        "fixed flags": _summary(fixed, None),
    }


class LevelRule:
    """Flags by one number a listed span; what they are worth at any level."""

    def __init__(self, lists: Lists, values: Floats) -> None:
        self.lists = lists
        self.values = values
        self.rows = lists.error_rows(values)
        self.right = lists.levels(lists.right, values)

    def figures(self, level: float, test: Ints) -> Figures:
        """Return risk, places and the rest on the test tasks; level 0 is everything, and no number of places."""
        everything = np.ones(len(self.lists.listed), np.bool_)
        places = self.lists.places(self.values >= level if level else everything)
        figures = _figures(self.lists, self.rows.level >= level, self.right >= level, places, test)
        return figures if level else figures | {"places": np.nan, "nothing": 0.0, "everything": 1.0}

    def seen_at(self, share: float, test: Ints) -> float:
        """Return the greatest level at which at least this share of the test tasks' errors is seen."""
        inside = np.zeros(len(self.lists), np.bool_)
        inside[test] = True
        levels = np.sort(self.rows.level[inside[self.rows.task]])[::-1]
        need = int(np.ceil(share * levels.size - 1e-9))
        return float(levels[need - 1]) if need else np.inf


def tuned_level(rows: ErrorRows, limit: float) -> float:
    """Return the greatest level whose mean loss on these very tasks is at most the limit: what no one can know."""
    used = rows.take(rows.counted)
    return greatest_level(used, lambda level: not len(used) or float(used.losses(level).mean()) <= limit)


def _figures(lists: Lists, seen: Bools, marked: Bools, places: Ints, test: Ints) -> Figures:
    """Return a rule's figures on the test tasks, from what it sees of errors and touches of right spans."""
    wrong = np.bincount(lists.errors.task[~seen], minlength=len(lists))
    false = np.bincount(lists.errors.task[~seen & lists.false], minlength=len(lists))
    losses = wrong / np.maximum(1, lists.entities + false)
    counted = test[(lists.entities + lists.predicted)[test] > 0]
    inside = np.zeros(len(lists), np.bool_)
    inside[test] = True
    errors, right = inside[lists.errors.task], inside[lists.right.task]
    return {
        "risk": float(losses[counted].mean()) if counted.size else 0.0,
        "places": float(places[test].mean()),
        "nothing": float((places[test] == 0).mean()),
        "everything": 0.0,
        "seen": float(seen[errors].mean()) if errors.any() else 1.0,
        "marked": float(marked[right].mean()) if right.any() else 0.0,
    }


def _fixed_flags(lists: Lists, rule: LevelRule, chosen: Ints, test: Ints) -> Figures:
    """Return the figures of METHODS 6.4's flags, and of the level that sees as many of the test tasks' errors."""
    known = np.zeros(len(lists), np.bool_)
    known[chosen] = True
    method = EntityMethod()
    entities = lists.rows.take(known[lists.rows.task])
    thresholds = calibrate(
        TaskRows.of((), np.zeros(0)), entities, classes=lists.classes, entity_method=method, allow_empty=True
    )
    looked = np.flatnonzero((1.0 - lists.probability[:, -1] >= P_MIN) | (lists.best >= 0))
    scores = method.scores(score_spans(lists.probability[looked]))
    tables = [thresholds.label_pool(label).table for label in (*lists.classes, "O")]
    held = np.column_stack([table.contains(scores[:, w], FLAG_ALPHA) for w, table in enumerate(tables)])
    best = [None if w < 0 else w for w in lists.best[looked].tolist()]
    flagged = np.zeros(len(lists.listed), np.bool_)
    _, flagged[looked] = flag_spans(lists.listed.start[looked], lists.listed.end[looked], sets=held, best=best)
    touched = flagged.astype(np.float64)
    seen, marked = lists.levels(lists.errors, touched) > 0, lists.levels(lists.right, touched) > 0
    figures = _figures(lists, seen, marked, lists.places(flagged), test)
    same = rule.figures(rule.seen_at(figures["seen"], test), test)
    return (
        figures
        | {f"{name}, same errors seen": same[name] for name in FIGURES}
        | {"marked more": same["marked"] - figures["marked"], "places more": same["places"] - figures["places"]}
    )


def _oracle(lists: Lists, test: Ints, limit: float) -> Figures:
    """Return the figures of someone who knows the errors and looks at the fewest places that keep the risk.

    Greedily: the places of a task are taken by their errors, those of all tasks by what they take off the mean loss.
    """
    place = place_numbers(lists.errors.start, lists.errors.end)  # of each error
    count = int(place.max(initial=-1)) + 1
    missing, false = (np.bincount(place[kind], minlength=count) for kind in (~lists.false, lists.false))
    task = np.zeros(count, np.int64)
    task[place] = lists.errors.task
    wrong = [np.bincount(lists.errors.task[kind], minlength=len(lists)) for kind in (~lists.false, lists.false)]
    gains, keys = np.zeros(count), np.zeros(count)
    order = np.lexsort((-(missing + false), task))  # by task, the place with most errors first
    left, key = (0, 0), np.inf
    for at, here in enumerate(order.tolist()):
        t = int(task[here])
        if not at or task[order[at - 1]] != t:
            left, key = (int(wrong[0][t]), int(wrong[1][t])), np.inf
        after = left[0] - int(missing[here]), left[1] - int(false[here])
        gains[here] = _share(left, int(lists.entities[t])) - _share(after, int(lists.entities[t]))
        left, key = after, min(key, float(gains[here]))
        keys[here] = key  # falls along a task, so that its places are taken in their order
    inside = np.zeros(len(lists), np.bool_)
    inside[test] = True
    counted = (lists.entities + lists.predicted)[test] > 0
    mine = order[inside[task[order]]]
    mine = mine[np.argsort(-keys[mine], kind="stable")]
    rest = float(gains[mine].sum()) - np.append(0.0, np.cumsum(gains[mine]))  # loss left after so many places
    need = int(np.argmax(rest <= limit * counted.sum() + 1e-12))
    looked = np.zeros(count, np.bool_)
    looked[mine[:need]] = True
    places = np.bincount(task[looked], minlength=len(lists)).astype(np.int64)
    # An error that overlaps a right span has none of its own to mark; what is looked at is wrong.
    return _figures(lists, looked[place], np.zeros(len(lists.right), np.bool_), places, test)


def _share(left: tuple[int, int], entities: int) -> float:
    """Return the loss of a task with so many missing and false spans left."""
    return sum(left) / max(1, entities + left[1])


def _summary(figures: Sequence[Figures], limit: float | None) -> dict[str, Any]:
    """Return mean and spread over splits; of places over those where not everything is flagged, None without one."""
    result: dict[str, Any] = {"spread": {}}
    for name in figures[0]:
        values = np.array([each[name] for each in figures])
        known = values[~np.isnan(values)]
        result[name] = float(known.mean()) if known.size else None
        result["spread"][name] = float(known.std(ddof=1)) if known.size > 1 else 0.0
    if limit is not None:
        result["above"] = float(np.mean([each["risk"] > limit + 1e-12 for each in figures]))
    return result


def risk_report(results: dict[str, dict[str, Any]], *, model: str) -> str:
    """Return the figures of all files as a Markdown page."""
    about = (
        f"Model {model}. *Risk* is the mean share of wrong or missing entities in the final labels when every flagged "
        "place is put right, over tasks with a true or predicted entity, ± the spread over splits; *above* is the "
        "share of splits whose test tasks had more than was asked for. *Places* are overlapping flagged spans taken "
        "together, over all tasks and the splits that found a level; *everything* is the share of splits that found "
        "none, where whole texts are flagged. *Right spans marked* are those that a flagged span touches. *Controlled* "
        "keeps the risk on average, *sure* in 95 % of calibrations (METHODS 11.4)."
    )
    lines = ["# Flags that keep a risk", "", about]
    for name, found in results.items():
        fixed = found["fixed flags"]
        counts = (
            f"{found['tasks']:,} tasks, {found['calibration']} of them calibrate in each of {found['splits']} splits; "
            f"{found['counted']:.0%} have a true or predicted entity. Without looking: {found['errors']:.2f} errors a "
            f"task, risk {found['risk']:.3f}; {found['untouched']:.1%} of the errors are touched by no listed span."
        )
        lines += ["", f"## {name}", "", counts, "", f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        for level in found["levels"]:
            tuned = level["rules"][RULES[2]]["places"]
            for rule in RULES:
                row = level["rules"][rule]
                ratio = f"{row['places'] / tuned:.2f}" if tuned and row["places"] is not None else ""
                lines.append(_line(f"{float(level['max_error']):g}", rule, row, f"{row['above']:.0%}", ratio))
        same = {each: fixed[f"{each}, same errors seen"] for each in FIGURES}
        compared = (
            f"At the same errors seen as METHODS 6.4: {fixed['marked more']:+.1%} right spans marked "
            f"(± {fixed['spread']['marked more']:.1%} over splits)"
            + ("." if fixed["places more"] is None else f", {fixed['places more']:+.2f} places a task.")
        )
        lines.append(_line("", f"METHODS 6.4, alpha {FLAG_ALPHA}", fixed, "", ""))
        lines += [_line("", "a level that sees as many errors", same, "", ""), "", compared]
    return "\n".join(lines) + "\n"


def _line(asked: str, rule: str, row: dict[str, Any], above: str, ratio: str) -> str:
    risk = f"{row['risk']:.4f}" + (f" ± {row['spread']['risk']:.4f}" if "spread" in row else "")
    places = "" if row["places"] is None else f"{row['places']:.2f}"
    shares = [f"{row[name]:.0%}" for name in ("everything", "nothing", "seen", "marked")]
    return f"| {asked} | {rule} | {risk} | {above} | {places} | {ratio} | {' | '.join(shares)} |"
