"""The tables, one module per area. Repository functions outside this package return domain objects, not rows."""

from backend.store.columns import Base
from backend.store.tables.acceptance import Acceptance, AcceptedTask, ShadowAcceptance
from backend.store.tables.actions import Action
from backend.store.tables.calibration import (
    CalibrationCell,
    CalibrationHead,
    CalibrationScore,
    EntityScore,
    ScoringAttempt,
    SpanError,
)
from backend.store.tables.core import Model, Project, Task, TaskDeletion
from backend.store.tables.inbox import Event, Job
from backend.store.tables.labels import Annotation, Label, LabelHistory
from backend.store.tables.monitoring import CoverageCount, Judgement, MonitorRow
from backend.store.tables.project_models import ModelChunk, ModelFile, ProjectModel
from backend.store.tables.queue import QueueEntry
from backend.store.tables.second_looks import SecondLook
from backend.store.tables.serving import Alarm, MonitorState, ServedSet
from backend.store.tables.streams import ProjectState, SamplingPeriod, TrainingTask
from backend.store.tables.versions import Activation, ActiveVersion, Threshold, ThresholdVersion

__all__ = [
    "Acceptance",
    "AcceptedTask",
    "Action",
    "Activation",
    "ActiveVersion",
    "Alarm",
    "Annotation",
    "Base",
    "CalibrationCell",
    "CalibrationHead",
    "CalibrationScore",
    "CoverageCount",
    "EntityScore",
    "Event",
    "Job",
    "Judgement",
    "Label",
    "LabelHistory",
    "Model",
    "ModelChunk",
    "ModelFile",
    "MonitorRow",
    "MonitorState",
    "Project",
    "ProjectModel",
    "ProjectState",
    "QueueEntry",
    "SamplingPeriod",
    "ScoringAttempt",
    "SecondLook",
    "ServedSet",
    "ShadowAcceptance",
    "SpanError",
    "Task",
    "TaskDeletion",
    "Threshold",
    "ThresholdVersion",
    "TrainingTask",
]
