"""Domain objects that the repository functions take and return: frozen, free of any database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple


class TextSpan(NamedTuple):
    """An entity in a text: characters `start .. end - 1` (code points), of class `label`."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class ProjectRecord:
    """A project. `key` is the part of `uid` before the dot."""

    id: int
    uid: str
    key: str
    title: str
    label_config: str | None
    alpha: str | None


@dataclass(frozen=True)
class ModelRecord:
    """A tagger; `version` is how answers name it."""

    id: int
    name: str
    hash: str
    classes: tuple[str, ...]
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def version(self) -> str:
        """`<name>@<first 8 of the hash>`, the part of a prediction's version before `+cal.<thresholds>`."""
        return f"{self.name}@{self.hash[:8]}"


@dataclass(frozen=True)
class Draw:
    """What was drawn for a task before anyone saw it (METHODS 8.1)."""

    stream: str
    random_order: float
    selection_probability: float
    blind: bool


@dataclass(frozen=True)
class TaskRecord:
    """A task; `text` is None once a retention rule removed it."""

    id: int
    project_id: int
    external_id: str
    text_hash: bytes
    text: str | None
    language: str | None
    length: int | None
    draw: Draw | None
    deleted: bool


@dataclass(frozen=True)
class EventRecord:
    """One delivery. `payload` is what was sent, with secrets redacted."""

    id: int
    received_at: datetime
    action: str
    project_key: str
    ordering_key: str | None
    payload: Mapping[str, Any]
    state: str
    attempts: int
    claims: int
    error: str | None


@dataclass(frozen=True)
class AnnotationRecord:
    """One annotation as Label Studio described it. Spans are kept as a sorted set (METHODS 8.4).

    `accepted` is what we know and the server does not say: that acceptance made it (METHODS 12.4).
    """

    annotation_id: int
    updated_at: datetime
    spans: tuple[TextSpan, ...]
    was_cancelled: bool = False
    ground_truth: bool = False
    bulk: bool = False
    created_at: datetime | None = None
    unique_id: str | None = None
    parent_prediction: int | None = None
    parent_annotation: int | None = None
    origins: Mapping[str, int] = field(default_factory=dict)
    lead_time: float | None = None
    completed_by: int | None = None
    accepted: bool = False


@dataclass(frozen=True)
class LabelRecord:
    """The label of a task that counts, with where it comes from.

    `spans` is None where nobody confirmed anything; `exclusion` says why the label is not evidence
    (`skipped`, `bulk`, `accepted`, `withdrawn`), None when it is.
    """

    id: int
    project_id: int
    task_id: int
    policy: str
    revision: int
    spans: tuple[TextSpan, ...] | None
    exclusion: str | None
    votes: int
    voters: int
    annotation: AnnotationRecord | None


@dataclass(frozen=True)
class LabelChange:
    """What recording an annotation or a deletion did to the label of one task."""

    task_id: int
    changed: bool
    label: LabelRecord | None


@dataclass(frozen=True)
class Cell:
    """Calibration rows that are interchangeable, and how many live ones there are.

    `n` are units; `tasks` are those whose first unit is here, so that a sum over cells counts every task once.
    """

    id: int
    stratum: str
    evidence: str
    exclusion: str
    n: int
    n_infinite: int
    tasks: int


@dataclass(frozen=True)
class SequenceScores:
    """What a model says about one labeling (METHODS 4.1); `+inf` where it cannot express it (METHODS 3.3).

    -log P, the rank of the labeling, the probability of it and all before it, and how many entities it has. The store
    keeps every field in a column of its name.
    """

    nll: float
    rank: float
    cumulative: float
    entities: int = 0


@dataclass(frozen=True)
class EntityRow:
    """What a model says about one span and class (METHODS 6.1).

    P_ent (`probability`), nc2_ent (`cumulative`), nc3_ent, which is the rank of the class among those of the span
    (`class_rank`), and the rank of the first labeling that holds the entity (`rank`); `+inf` where there is none. The
    store keeps every field in a column of its name.
    """

    start: int
    end: int
    label: str
    probability: float
    cumulative: float
    class_rank: float
    rank: float


@dataclass(frozen=True)
class UnitRow:
    """What a model says about one unit of a labeled task: its characters, stratum, scores and entities.

    `end` is None for a row from before there were units. `drawn` says that it is the one unit of its task, drawn by
    lot, that monitors look at.
    """

    stratum: str
    scores: SequenceScores
    entities: tuple[EntityRow, ...] = ()
    start: int = 0
    end: int | None = 0
    drawn: bool = True


@dataclass(frozen=True)
class ErrorRow:
    """The errors of a task's best labeling beside its label (METHODS 11.1).

    How many spans both have, and the level at which each error is seen: of true spans that the best labeling lacks
    (`missing`) and of spans that only it has (`false`).
    """

    true_spans: int
    best_spans: int
    missing: tuple[float, ...] = ()
    false: tuple[float, ...] = ()


@dataclass(frozen=True)
class ThresholdRow:
    """Summary of one pool (or class) of a thresholds object."""

    kind: str
    pool: str
    n: int
    n_infinite: int
    tau: float


@dataclass(frozen=True)
class VersionRecord:
    """An immutable threshold version. `content` is the library's own serialised thresholds object."""

    id: int
    project_id: int
    model_id: int
    alpha: str
    method: str
    evidence: str
    guarantee: str
    input_revision: int
    n: int
    content: bytes
    details: Mapping[str, Any]
    created_at: datetime


@dataclass(frozen=True)
class ActivationRecord:
    """One activation of a version."""

    version_id: int
    previous_id: int | None
    reason: str
    at: datetime


@dataclass(frozen=True)
class JobRecord:
    """A job and how far it is."""

    id: int
    kind: str
    key: str
    project_id: int | None
    state: str
    payload: Mapping[str, Any]
    holder: str | None
    fence: int
    attempts: int
    progress_done: int
    progress_total: int | None
    progress_note: str
    lease_until: datetime | None
    heartbeat_at: datetime | None
    result: Mapping[str, Any] | None
    error: str | None


@dataclass(frozen=True)
class SetAside:
    """A label that is not scored any more under a model, and why; `task` is the task's name in Label Studio."""

    project_id: int
    task_id: int
    task: str
    model_id: int
    attempts: int
    reason: str
    at: datetime


@dataclass(frozen=True)
class Served:
    """A set as it was served, or would have been (`shadow`). `ranked` is the packed list it was cut from.

    `priority` is what its task is ordered by (`domain.priority`); for a shadow one that was
    drawn and says nothing about it. `flags` counts the places that were flagged, `doubt` is how likely the best
    labeling is to have an error, or the share of it that is expected to be wrong (METHODS 12.1).
    """

    task_id: int
    model_id: int
    version_id: int | None
    shadow: bool
    stratum: str
    pool: str
    guarantee: str
    n: int
    tau: float
    is_open: bool
    set_size: int | None
    shown: int
    ranked: bytes
    served_at: datetime
    id: int | None = None
    alpha: str | None = None
    priority: float | None = None
    flags: int | None = None
    doubt: float | None = None


@dataclass(frozen=True)
class AcceptanceRecord:
    """A decision about acceptance (METHODS 12.2); `level` is None where nothing may be accepted, and `why` says why.

    `number` is its place among the project's decisions and `delta` the chance of error that it has spent. It rests on
    `labels` blind labels, of which `below` have a doubt up to the level and lost `lost`; `share` of the project's
    `tasks` are up to the level; `bound` is what the labels prove. `account` is the Label Studio user that accepts.
    """

    id: int
    project_id: int
    number: int
    model_id: int
    version_id: int | None
    promise: str
    max_error: str
    delta: float
    labels: int
    tasks: int
    level: float | None
    share: float
    below: int
    lost: float
    bound: float
    why: str
    decided_at: datetime
    decided_by: str
    account: int | None = None
    acted_at: datetime | None = None
    withdrawn_at: datetime | None = None
    withdrawn_why: str | None = None


@dataclass(frozen=True)
class MonitorRecord:
    """The state of one monitor after `consumed` rows; `state` is the monitor's own bytes."""

    kind: str
    stratum: str
    revision: int
    consumed: int
    value: float
    state: bytes


@dataclass(frozen=True)
class AlarmRecord:
    """An alarm that was raised."""

    id: int
    kind: str
    stratum: str
    value: float
    message: str
    raised_at: datetime
    acknowledged_at: datetime | None
