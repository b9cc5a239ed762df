"""The tabs that connecting adds to a project's Data Manager."""

from __future__ import annotations

from typing import Any

from backend.domain.streams import Order, order_of
from backend.labelstudio.client import where

REVIEW_FIRST, BLIND_AUDIT, DONE = "Review first", "Blind audit", "Done"
ACCEPTED, EVIDENCE_FIRST = "Accepted", "Evidence first"

_MOST_NAMED = 100  # tasks that a tab names; the browser draws a row of controls for each

# Columns that say nothing to a project lead; the others can be shown as always.
_HIDDEN = [
    "tasks:inner_id",
    "tasks:cancelled_annotations",
    "tasks:annotations_results",
    "tasks:annotations_ids",
    "tasks:predictions_results",
    "tasks:file_upload",
    "tasks:storage_filename",
    "tasks:created_at",
    "tasks:updated_at",
    "tasks:updated_by",
    "tasks:avg_lead_time",
    "tasks:draft_exists",
]
# Beside an open task there is room for little more than the text.
_HIDDEN_BESIDE = [
    *_HIDDEN,
    "tasks:id",
    "tasks:completed_at",
    "tasks:total_predictions",
    "tasks:annotators",
    "tasks:predictions_score",
    "tasks:predictions_model_versions",
]


def _tab(title: str, *, order: str, filters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": title,
        "type": "list",
        "target": "tasks",
        "ordering": [order],
        "filters": {"conjunction": "and", "items": filters},
        "hiddenColumns": {"explore": list(_HIDDEN), "labeling": list(_HIDDEN_BESIDE)},
    }


def default_tab() -> dict[str, Any]:
    """Return the tab that shows every task, with the text among the first columns as in Label Studio's own."""
    return _tab("Default", order="tasks:id", filters=[]) | {"ordering": []}


def tabs_for(sampling: str) -> dict[str, dict[str, Any]]:
    """Return the tabs for a project that gives out its tasks in this way, by title.

    "Review first" is there only where the model's doubt decides the order anyway: the label stream follows a tab's
    order, and labels of a stream in that order are no random sample (METHODS 8.1), which nobody could tell afterwards.

    >>> list(tabs_for("Uniform sampling")), list(tabs_for("Uncertainty sampling"))
    (['Done'], ['Review first', 'Done'])
    """
    unlabelled = [where("total_annotations", "equal", 0)]
    first = {REVIEW_FIRST: _tab(REVIEW_FIRST, order="tasks:predictions_score", filters=unlabelled)}
    done = {DONE: _tab(DONE, order="-tasks:completed_at", filters=[where("total_annotations", "greater", 0)])}
    return (first if order_of(sampling) is Order.REVIEW else {}) | done


def accepted_tab(account: int) -> dict[str, Any]:
    """Return the tab of what an account has accepted, the newest first.

    By annotator: a labeling without entities carries no region that could be marked.
    """
    by = {"filter": "filter:tasks:annotators", "operator": "contains", "type": "List", "value": account}
    return _tab(ACCEPTED, order="-tasks:completed_at", filters=[by])


def evidence_tab(tasks: list[int]) -> dict[str, Any]:
    """Return the tab of drawn-blind tasks that wait for a label, for a label stream that asks for those first."""
    ids = [where("id", "equal", task) for task in sorted(tasks)[:_MOST_NAMED]]
    return _tab(EVIDENCE_FIRST, order="tasks:id", filters=ids) | {"filters": {"conjunction": "or", "items": ids}}


def blind_tab(tasks: list[int]) -> dict[str, Any]:
    """Return the tab of the tasks that are shown blank, those that wait for a label first.

    One condition per task: the server also knows `in_list`, but a tab with it stops the whole Data Manager in the
    browser, whatever tab is open.
    """
    ids = [where("id", "equal", task) for task in sorted(tasks)[:_MOST_NAMED]]
    tab = _tab(BLIND_AUDIT, order="tasks:total_annotations", filters=ids)
    return tab | {"filters": {"conjunction": "or", "items": ids}}
