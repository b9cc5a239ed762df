"""What a decision rests on: blind labels of equal chance, what the model said about their texts, and what was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from sqlalchemy.orm import Session

from backend.acceptance.losses import loss_of
from backend.domain.priority import doubt_of
from backend.domain.records import AcceptanceRecord, ProjectRecord, TextSpan
from backend.domain.streams import uniforms
from backend.domain.target import Target
from backend.store.acceptance import (
    PLANNED,
    SENT,
    BlindLabel,
    blind_labels,
    count_accepted,
    list_acceptances,
    load_shadows,
    passed_over,
)
from backend.store.packed_lists import unpack_ranked
from backend.store.state import SALT, get_state
from conformal.quantile import Floats
from conformal.risk.acceptance import equal_chance


@dataclass(frozen=True, eq=False)
class Rows:
    """Blind labels in the order in which they were made.

    `shares` says that one of the texts has several units, so that losses may be shares.
    """

    labels: tuple[BlindLabel, ...]
    doubts: Floats  # (n,)
    losses: Floats  # (n,)
    earlier: Floats  # (n,)
    shares: bool

    def first(self, count: int) -> Rows:
        """Return the labels that were made first."""
        cut = slice(0, count)
        return Rows(self.labels[cut], self.doubts[cut], self.losses[cut], self.earlier[cut], self.shares)


def equal_labels(session: Session, project: ProjectRecord, *, model_id: int) -> list[BlindLabel]:
    """Return the blind labels of tasks that all had the same chance to be drawn (METHODS 12.2)."""
    labels = blind_labels(session, project.id, model_id=model_id)
    salt = str((get_state(session, project.id, SALT) or {}).get("salt", ""))

    def drawn(tasks: Sequence[str]) -> list[float]:
        return [uniforms(salt, project.uid, task).u for task in tasks]

    kept = equal_chance(drawn([each.task for each in labels]), drawn(passed_over(session, project.id)))
    return [each for each, keep in zip(labels, kept, strict=True) if keep]


def gather(session: Session, project: ProjectRecord, *, model_id: int, target: Target) -> Rows:
    """Return the rows that a decision about a model may rest on; labels whose text was not predicted are left out."""
    labels = [each for each in equal_labels(session, project, model_id=model_id) if each.ranked is not None]
    doubts, losses, several = [], [], False
    for each in labels:
        ranked = unpack_ranked(each.ranked or b"")
        units = len(ranked.units)
        several = several or units > 1
        doubts.append(doubt_of(ranked))
        best = as_labels(ranked.best, target)
        losses.append(loss_of(best, each.spans, text=each.text, units=units))
    standing = standing_acceptances(session, project.id)
    earlier = cumulative_losses(session, labels, standing)
    return Rows(tuple(labels), np.array(doubts), np.array(losses), earlier, several)


def as_labels(spans: Sequence[TextSpan], target: Target) -> tuple[TextSpan, ...]:
    """Return spans with the labels of the label config in place of the model's classes."""
    return tuple(TextSpan(span.start, span.end, target.labels.get(span.label, span.label)) for span in spans)


def standing_acceptances(session: Session, project_id: int) -> list[AcceptanceRecord]:
    """Return the decisions by which tasks are accepted now: acted on, and not wholly taken back."""
    counts: Mapping[int, Mapping[str, int]] = count_accepted(session, project_id)
    return [
        each
        for each in list_acceptances(session, project_id)
        if each.acted_at is not None and (each.withdrawn_at is None or counts.get(each.id, {}).keys() & {PLANNED, SENT})
    ]


def cumulative_losses(
    session: Session, labels: Sequence[BlindLabel], acceptances: Sequence[AcceptanceRecord]
) -> Floats:
    """Return what decisions together, would they have accepted each task, have lost on it: its worst."""
    lost = np.zeros(len(labels))
    for acceptance in acceptances:
        shadows = {each.task_id: each for each in load_shadows(session, acceptance.id)}
        for at, label in enumerate(labels):
            shadow = shadows.get(label.task_id)
            if shadow is not None:
                loss = loss_of(shadow.spans, label.spans, text=label.text, units=shadow.units)
                lost[at] = max(lost[at], loss)
    return lost


def later_losses(
    session: Session, labels: Sequence[BlindLabel], acceptance: AcceptanceRecord, *, before: Sequence[AcceptanceRecord]
) -> Floats:
    """Return the losses that labels made after a decision show: of all tasks, with what `before` lost, or of its own.

    `before` are the decisions that stand up to this one, itself included.
    """
    since: datetime = acceptance.decided_at
    later = [each for each in labels if each.at > since]
    if acceptance.promise == "all":
        return cumulative_losses(session, later, before)
    inside = {each.task_id for each in load_shadows(session, acceptance.id)}
    return cumulative_losses(session, [each for each in later if each.task_id in inside], [acceptance])
