"""A model that was trained for a project: what is kept of it, and the states it can be in (METHODS 13.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

STORED = "stored:"  # before the hash: where a model comes from that the database keeps


class State(StrEnum):
    """Whether a model answers for its project."""

    CANDIDATE = "candidate"  # trained, never served
    SERVING = "serving"  # the project's own: one at most
    RETIRED = "retired"  # served before, or was not good enough to


@dataclass(frozen=True)
class ProjectModel:
    """A model of a project.

    `model_hash` is over all its classes, not of a label config's view of it. `base` is what training began with:
    `bundled`, `nothing`, or the hash of another model. `labels` are how many it learnt from, read up to `labels_until`.
    """

    id: int
    project_id: int
    model_hash: str
    name: str
    classes: tuple[str, ...]
    base: str
    labels: int
    labels_until: datetime | None
    state: State
    asked_by: str
    why: str
    created_at: datetime
    promoted_at: datetime | None = None
    retired_at: datetime | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """`<name>@<first 8 of the hash>`."""
        return f"{self.name}@{self.model_hash[:8]}"

    @property
    def source(self) -> str:
        """What to ask for to get this model from the database."""
        return f"{STORED}{self.model_hash}"
