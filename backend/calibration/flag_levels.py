"""Stored errors to the levels of flags that control risk, fitted at every refit (METHODS 11.4, 11.5)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from backend.calibration.evidence import row_weights
from backend.domain.flag_rule import RiskRule
from backend.store.bulk import ErrorTable
from backend.store.skips import SkippedTask
from conformal.risk import ErrorRows, RiskLevels, fit_levels


def flag_levels(table: ErrorTable, rule: RiskRule, *, n_min: int, skipped: Iterable[SkippedTask] = ()) -> RiskLevels:
    """Fit the levels on the errors of tasks that were labelled without a prelabel, or are vouched for.

    Args:
        skipped: tasks that nobody labelled and that count all the same: everything in them is left behind. Of those
            only tasks drawn to be blind count here, as of the labels (METHODS 8.3).
    """
    lost = [task for task in skipped if task.draw.blind and task.language]
    count = len(table.task_ids)
    weights = np.concatenate([row_weights(table.weight), np.ones(len(lost))])
    rows = ErrorRows(
        np.concatenate([table.true_spans, np.ones(len(lost), np.int64)]),
        np.concatenate([table.best_spans, np.zeros(len(lost), np.int64)]),
        None if np.all(weights == 1.0) else weights,
        np.concatenate([table.errors_of, count + np.arange(len(lost))]),
        np.concatenate([table.levels, np.zeros(len(lost))]),
        np.concatenate([~table.missing, np.zeros(len(lost), np.bool_)]),
    )
    languages = [name.split("/")[0] for name in table.strata]
    spoken = [languages[code] for code in table.codes.tolist()] + [str(task.language) for task in lost]
    return fit_levels(rows, spoken, max_error=rule.max_error, sure=rule.sure, n_min=n_min)
