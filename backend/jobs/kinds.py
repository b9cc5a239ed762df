"""The kinds of jobs, and one way to ask for each: what the key of a job is, is said here alone."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy.orm import Session

from backend.domain.records import ProjectRecord
from backend.store.jobs import enqueue_job, load_job, pending_states, set_payload


class Kind(StrEnum):
    """What a job does; `worker.handlers` says who does it."""

    REFIT = "refit"  # fit a project's thresholds again
    PUBLISH = "publish"  # bring Label Studio to agree with the thresholds that serve now
    RESCORE = "rescore"  # score a project's labels under a new model, refit, and let it serve
    SECOND_LOOKS = "second-looks"  # list the confirmed labels that are probably wrong
    SYNC = "sync"  # take in what webhooks did not deliver
    ACCEPT = "accept"  # decide which tasks nobody needs to open, and accept them
    WITHDRAW = "withdraw"  # take back what was accepted and nobody has touched
    TRAIN = "train"  # train a model from a project's labels, in a process of its own
    WORTH = "worth"  # measure how good prelabels are, what they saved and what is left
    RECONSIDER = "reconsider"  # decide again which of a project's rows may calibrate


def job_key(kind: Kind, project: ProjectRecord) -> str:
    """Return the key under which jobs of a kind are one for a project: one waits, and one runs.

    >>> job_key(Kind.SYNC, ProjectRecord(id=1, uid="7.1", key="7", title="", label_config=None, alpha=None))
    'sync:7.1'
    """
    return f"{kind.value}:{project.uid}"


def queue_refit(session: Session, project: ProjectRecord, *, reason: str) -> int:
    """Ask for a refit; `reason` is kept with the version that it makes. Returns the id of the job that waits."""
    return _queue(session, Kind.REFIT, project, reason=reason)


def queue_publish(session: Session, project: ProjectRecord) -> int:
    """Ask that Label Studio be brought to agree with the version that serves now; returns the id of the job."""
    return _queue(session, Kind.PUBLISH, project)


def queue_rescore(session: Session, project: ProjectRecord, *, model: str) -> int:
    """Ask that the project's labels be scored under the model with this hash; returns the id of the job."""
    return _queue(session, Kind.RESCORE, project, model=model)


def queue_second_looks(session: Session, project: ProjectRecord) -> int:
    """Ask that labels that came since be judged and the list of second looks made again; returns the id of the job."""
    return _queue(session, Kind.SECOND_LOOKS, project)


def queue_worth(session: Session, project: ProjectRecord) -> int:
    """Ask that it be measured what the project's prelabels are worth; returns the id of the job."""
    return _queue(session, Kind.WORTH, project)


def queue_sync(session: Session, project: ProjectRecord) -> int:
    """Ask for a reconciliation with Label Studio; returns the id of the job."""
    return _queue(session, Kind.SYNC, project)


def queue_reconsider(session: Session, project: ProjectRecord) -> int:
    """Ask that it be decided again which rows of the project may calibrate; returns the id of the job."""
    return _queue(session, Kind.RECONSIDER, project)


def queue_accept(
    session: Session, project: ProjectRecord, *, max_error: str, promise: str, who: str, dry_run: bool = False
) -> int:
    """Ask for a decision about acceptance, and unless it is a dry run that it be acted on; returns the job's id.

    Where one waits already it does what was asked for last; that it only looks, it says of itself and of no other.
    """
    asked = {"max_error": max_error, "promise": promise, "who": who, "dry_run": "yes" if dry_run else ""}
    job = _queue(session, Kind.ACCEPT, project, **asked)
    waiting = load_job(session, job)
    same = waiting is not None and all(waiting.payload.get(name) == asked[name] for name in ("max_error", "promise"))
    if not (same and dry_run):
        set_payload(session, job, asked)
    return job


def queue_withdraw(session: Session, project: ProjectRecord, *, reason: str) -> int:
    """Ask that what was accepted be taken back where nobody has touched it; returns the id of the job."""
    return _queue(session, Kind.WITHDRAW, project, reason=reason)


def queue_train(session: Session, project: ProjectRecord, *, who: str, labels: int = 0) -> int:
    """Ask that a model be trained from the project's labels; returns the id of the job.

    `who` is kept with it, and where it was due by their number how many `labels` there were.
    """
    return _queue(session, Kind.TRAIN, project, who=who, labels=str(labels))


def is_pending(session: Session, kind: Kind, project: ProjectRecord) -> bool:
    """Whether a job of this kind waits or runs for the project."""
    return bool(pending_states(session, key=job_key(kind, project)))


def is_running(session: Session, kind: Kind, project: ProjectRecord) -> bool:
    """Whether a job of this kind runs for the project."""
    return "running" in pending_states(session, key=job_key(kind, project))


def _queue(session: Session, kind: Kind, project: ProjectRecord, **payload: str) -> int:
    return enqueue_job(session, kind.value, key=job_key(kind, project), project_id=project.id, payload=payload)
