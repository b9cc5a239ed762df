"""How far a project is on the way to its next model: for programs and for its page."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from backend.domain.records import JobRecord, ProjectRecord
from backend.jobs.kinds import Kind
from backend.learning.schedule import next_step, noted_labels, trained_at
from backend.settings import Settings
from backend.store.jobs import last_job
from backend.store.state import LEARNING, get_state


def learning_report(session: Session, project: ProjectRecord, *, settings: Settings) -> dict[str, Any]:
    """Return how many labels there are to learn from, when a model is trained next, and what the last training did."""
    job = last_job(session, Kind.TRAIN.value, project_id=project.id)
    labels, before = noted_labels(session, project), trained_at(session, project)
    return {
        "learn": settings.learn,
        "start_from": settings.learn_from,
        "labels": labels,
        "last_at_labels": before or None,
        "next_at_labels": next_step(before) if settings.learn == "auto" else None,
        "refused": (get_state(session, project.id, LEARNING) or {}).get("refused"),
        "training": None if job is None else _describe(job),
    }


def describe_learning(report: dict[str, Any]) -> str:
    """Say it in a sentence.

    >>> describe_learning({"learn": "auto", "labels": 12, "next_at_labels": 20, "training": None, "refused": None})
    '12 labels to learn from; a model is trained at 20.'
    >>> describe_learning({"learn": "manual", "labels": 1, "next_at_labels": None, "training": None, "refused": None})
    '1 label to learn from; a model is trained when somebody asks for it.'
    >>> job = {"state": "queued", "error": "expected a trained model, got signal 9"}
    >>> describe_learning({"learn": "auto", "labels": 20, "next_at_labels": 20, "training": job, "refused": None})
    '20 labels to learn from; a training failed and is tried again: expected a trained model, got signal 9'
    """
    count = report["labels"]
    sentence = f"{count:,} label{'' if count == 1 else 's'} to learn from"
    job = report["training"]
    if report["learn"] == "off":
        return f"{sentence}; SURESPAN_LEARN is off, so no model is trained."
    if job is not None and job["state"] == "queued":
        if job["error"]:
            return f"{sentence}; a training failed and is tried again: {job['error']}"
        return f"{sentence}; a training waits for its turn."
    if job is not None and job["state"] == "running":
        return f"{sentence}; training: {job['percent']} %, {job['note']}."
    if report["refused"]:
        return f"{sentence}; nothing was trained the last time: {report['refused']}"
    if job is not None and job["state"] == "failed":
        return f"{sentence}; the last training failed, and the model before it serves: {job['error']}"
    if report["learn"] == "manual":
        return f"{sentence}; a model is trained when somebody asks for it."
    return f"{sentence}; a model is trained at {report['next_at_labels']:,}."


def _describe(job: JobRecord) -> dict[str, Any]:
    return {
        "job": job.id,
        "state": job.state,
        "percent": round(100 * job.progress_done / (job.progress_total or 100)),
        "note": job.progress_note,
        "error": job.error,
        "result": dict(job.result or {}),
    }
