"""What the sets save an annotator, and how well an order of review finds mistakes (METHODS 9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from backend.evaluation.decoding import SHOWN
from backend.evaluation.study import Judged, Study
from conformal.flags import flag_spans
from conformal.quantile import Floats
from conformal.rows import TaskRows
from conformal.subsequence import EntityMethod, Ints, score_spans
from conformal.thresholds import calibrate

SHARES = (0.1, 0.2, 0.3)
REVIEW_VALUE = "least confidence plus expected wrong spans"  # what the queue uses: backend.domain.priority.review_value


def actions(study: Study, judged: Judged, *, max_shown: int = 5) -> dict[str, float]:
    """Return the mean number of actions a task takes: pick = 1, each add, delete, relabel or resize = 1.

    With a set, the annotator picks the listed member that needs least, y(1) being filled in already. With flags too,
    the best case is counted in which every change a flagged span announces is found without reading the rest; reading
    is not counted, so the figure equals that of the set and the flags' worth is their recall, given beside it.
    """
    d = study.decoded
    every = d["task.actions"][judged.test].astype(np.float64)
    size = np.where(judged.outcomes.open, max_shown, np.clip(judged.outcomes.size, 1, min(max_shown, SHOWN)))
    choices = every[:, 1 : SHOWN + 1] + (np.arange(SHOWN) > 0)
    usable = (np.arange(SHOWN) < size[:, None]) & (every[:, 1:] >= 0)
    return {
        "no help": float(every[:, 0].mean()),
        "best labeling": float(every[:, 1].mean()),
        "ranked set": float(np.where(usable, choices, np.inf).min(axis=1).mean()),
    }


def shown_spans(study: Study) -> npt.NDArray[np.bool_]:
    """Return which of the stored spans the product looks at: the others are there only because they are true."""
    d = study.decoded
    return np.asarray(d["span.candidate"] | (d["span.best"] >= 0), dtype=np.bool_)


def flag_figures(study: Study, *, alpha: str, split: int = 0) -> dict[str, float]:
    """Return how many spans are flagged a task, the share of wrong spans flagged and of right ones not.

    Spans are looked at as the product does: candidates and those of the best labeling. A true entity that is neither,
    or that the model's tokens cannot express, is wrong and not flagged: nobody is shown it.
    """
    d = study.decoded
    shown = shown_spans(study)
    calibration, test = study.split(split)
    known, judged = np.zeros(len(d), np.bool_), np.zeros(len(d), np.bool_)
    known[calibration], judged[test] = True, True
    method = EntityMethod()
    thresholds = calibrate(
        TaskRows.of((), np.zeros(0)),
        study.entities.take(known[study.entities.task]),
        classes=d.classes,
        entity_method=method,
        allow_empty=True,
    )
    scores = method.scores(score_spans(d["span.probability"]))
    tables = [thresholds.label_pool(label).table for label in (*d.classes, "O")]
    held = np.column_stack([table.contains(scores[:, w], alpha) for w, table in enumerate(tables)])
    order = np.argsort(d["span.task"], kind="stable")
    order = order[shown[order]]
    bounds = np.searchsorted(d["span.task"][order], np.arange(len(d) + 1))
    flagged = np.zeros(len(shown), np.bool_)
    for task in test.tolist():
        rows = order[bounds[task] : bounds[task + 1]]
        if rows.size:
            best = [None if w < 0 else int(w) for w in d["span.best"][rows].tolist()]
            _, flagged[rows] = flag_spans(d["span.start"][rows], d["span.end"][rows], sets=held[rows], best=best)
    here = judged[d["span.task"]]
    wrong = here & (d["span.best"] != d["span.true"])
    right = here & (d["span.best"] >= 0) & (d["span.best"] == d["span.true"])
    true = np.bincount(d["span.task"][d["span.true"] >= 0], minlength=len(d))
    lost = int((d["task.entities"] - true)[test].sum())
    errors = int(wrong.sum()) + lost
    return {
        "flags a task": float(flagged.sum() / test.size),
        "wrong spans that are flagged": float(flagged[wrong].sum() / errors) if errors else float("nan"),
        "right spans that are not flagged": float((~flagged[right]).mean()) if right.any() else float("nan"),
    }


def queue_statistics(study: Study, judged: Judged) -> dict[str, Floats]:
    """Return, for each order of review, a number per test task: the highest is looked at first."""
    d = study.decoded
    tasks = judged.test
    logs = study.logs[tasks]
    best = logs[:, 0].astype(np.float64)
    second = np.where(np.isfinite(logs[:, 1]), np.exp(logs[:, 1].astype(np.float64)), 0.0)
    size = np.where(judged.outcomes.open, np.inf, judged.outcomes.size)
    weakest = _weakest_part(study)[tasks]
    return {
        "random": np.random.default_rng([study.seed, 4]).random(tasks.size),
        "least confidence": -best,
        "length-normalised log-probability": -best / np.maximum(d["task.length"][tasks], 1),
        "margin of the two best": second - np.exp(best),
        "set size, then least confidence": np.where(size == 0, np.inf, size) + 1e-6 * -best,
        "expected wrong spans": _expected_errors(study)[tasks],
        REVIEW_VALUE: _expected_errors(study)[tasks] - best,
        "weakest entity": weakest,
    }


def _weakest_part(study: Study) -> Floats:
    """Return `-log` of the least P_ent among the best labeling's entities and 1 - P_ent of the spans it leaves out."""
    task, own = _own_probability(study)
    result = np.zeros(len(study.decoded))
    with np.errstate(divide="ignore"):
        np.maximum.at(result, task, -np.log(own))
    return result


def _expected_errors(study: Study) -> Floats:
    """Return the expected number of spans where the best labeling is wrong, by the model's own probabilities."""
    task, own = _own_probability(study)
    return np.asarray(np.bincount(task, weights=1.0 - own, minlength=len(study.decoded)), dtype=np.float64)


def _own_probability(study: Study) -> tuple[Ints, Floats]:
    """Return the task of every span that is looked at, and the probability of what the best labeling says of it."""
    d = study.decoded
    shown = shown_spans(study)
    p = d["span.probability"][shown]
    best = d["span.best"][shown].astype(np.int64)
    own = np.where(best >= 0, p[np.arange(len(p)), np.maximum(best, 0)], p[:, -1])
    return d["span.task"][shown], own


def queue_figures(study: Study, judged: Judged) -> list[dict[str, Any]]:
    """Return, for each order, the share of all errors in the first 10, 20 and 30 % of tasks.

    `tasks`: tasks whose best labeling is wrong. `actions`: corrections, all of a task's counted at once.
    """
    d = study.decoded
    tasks: Ints = judged.test
    wrong = (d["task.rank"][tasks] != 1).astype(np.float64)
    needed = d["task.actions"][tasks, 1].astype(np.float64)
    rows: list[dict[str, Any]] = []
    for name, values in queue_statistics(study, judged).items():
        order = np.argsort(-values, kind="stable")
        row: dict[str, Any] = {"order": name}
        for share in SHARES:
            first = order[: round(share * order.size)]
            row[f"tasks {share:.0%}"] = float(wrong[first].sum() / max(wrong.sum(), 1))
            row[f"actions {share:.0%}"] = float(needed[first].sum() / max(needed.sum(), 1))
        rows.append(row)
    return rows
