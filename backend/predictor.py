"""Text to prediction sets: the one service object, used by the command line, the server and the worker alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from backend.starter import load_starter, starter_name
from backend.tagger.spans import CharSpan, to_char_spans
from backend.tagger.tagger import Tagged, Tagger
from conformal.labels import Span
from conformal.prediction import PredictionSet, predict_set
from conformal.rows import TaskRows
from conformal.scores import Method, boundary_u
from conformal.thresholds import Thresholds, calibrate

STARTER_VERSION = 0  # the database's own versions start at 1


class Guarantee(StrEnum):
    """What the thresholds entitle us to say; see PRODUCT's words."""

    OWN = "own"
    ASSISTED = "assisted"
    BORROWED = "borrowed"
    NONE = "none"


@dataclass(frozen=True)
class Calibration:
    """Thresholds together with what they are worth and which version they are."""

    thresholds: Thresholds
    guarantee: Guarantee
    version: int


@dataclass(frozen=True)
class Prediction:
    """The sets of one text, in characters."""

    tagged: Tagged
    sets: PredictionSet
    guarantee: Guarantee
    threshold_version: int
    model_version: str

    def char_spans(self, spans: Sequence[Span]) -> list[CharSpan]:
        """Token spans of this text as character spans."""
        return to_char_spans(spans, self.tagged.tokens)

    def as_dict(self) -> dict[str, Any]:
        """Return what `surespan predict --json` prints for the text; see docs/reference."""
        text, sets = self.tagged.text, self.sets
        return {
            "text": text,
            "language": self.tagged.language,
            "stratum": sets.stratum,
            "pool": sets.pool,
            "alpha": sets.alpha,
            "n": sets.n,
            "guarantee": self.guarantee.value,
            "threshold_version": self.threshold_version,
            "model_version": self.model_version,
            "open": sets.open,
            "set_size": sets.set_size,
            "labelings": [
                {
                    "rank": labeling.rank,
                    "probability": labeling.probability,
                    "p_value": labeling.p_value,
                    "spans": [
                        {"start": start, "end": end, "label": label, "text": text[start:end]}
                        for start, end, label in self.char_spans(labeling.spans)
                    ],
                }
                for labeling in sets.labelings
            ],
            "spans": [
                {
                    "start": where.start,
                    "end": where.end,
                    "text": text[where.start : where.end],
                    "labels": [
                        {"label": held.label, "p_value": held.p_value, "probability": held.probability}
                        for held in found.labels
                    ],
                    "flagged": found.flagged,
                }
                for found, where in zip(
                    sets.spans, self.char_spans([Span(s.start, s.end, "") for s in sets.spans]), strict=True
                )
            ],
        }


class Predictor:
    """Says, for any text, which labelings and span labels cannot be ruled out at level alpha.

    Safe to share between threads: it holds no state but what it was made with.
    """

    def __init__(
        self,
        tagger: Tagger,
        calibration: Calibration,
        *,
        alpha: str = "0.05",
        max_shown: int = 5,
        max_sequences: int = 10_000,
        project: str = "local",
        secret: str = "",
    ) -> None:
        self.tagger = tagger
        self.calibration = calibration
        self.alpha = alpha
        self.max_shown = max_shown
        self.max_sequences = max_sequences
        self._draw = (secret, project)

    @property
    def model_version(self) -> str:
        """Return `<model name>@<first 8 of its hash>+cal.<threshold version>`."""
        return f"{self.tagger.name}@{self.tagger.hash[:8]}+cal.{self.calibration.version}"

    def predict(
        self,
        texts: Sequence[str],
        *,
        languages: Sequence[str | None] | None = None,
        tasks: Sequence[str | int] | None = None,
    ) -> list[Prediction]:
        """Return the sets of each text, in order.

        `tasks` names each text for randomised boundaries; without it, the text itself does.
        """
        names = texts if tasks is None else tasks
        tagged = self.tagger.potentials(texts, languages=languages)
        return [self._predict(made, name) for made, name in zip(tagged, names, strict=True)]

    def _predict(self, tagged: Tagged, task: str | int) -> Prediction:
        thresholds = self.calibration.thresholds
        secret, project = self._draw
        sets = predict_set(
            tagged.potentials,
            self.tagger.space,
            stratum=thresholds.strata.cell(length=len(tagged.tokens), language=tagged.language),
            thresholds=thresholds,
            alpha=self.alpha,
            u=boundary_u(secret, project, task) if thresholds.method.needs_u else None,
            max_shown=self.max_shown,
            max_sequences=self.max_sequences,
        )
        # Too few labels in this text's pool: whatever the others are worth, nothing can be said here.
        enough = thresholds.pool(sets.stratum).pool.calibrated
        guarantee = self.calibration.guarantee if enough else Guarantee.NONE
        return Prediction(tagged, sets, guarantee, self.calibration.version, self.model_version)


def starter_calibration(
    tagger: Tagger, directory: Path, *, method: Method | None = None, n_min: int = 100
) -> Calibration:
    """Return the starter calibration that lies beside a model, else one without any label.

    A starter made for other weights or other classes is not used: its scores say nothing about these.
    """
    path = directory / starter_name(tagger.space.classes)
    if path.exists():
        starter = load_starter(path)
        if starter.model_hash == tagger.hash and starter.classes == tagger.space.classes:
            draws = [boundary_u("starter", path.name, i) for i in range(len(starter.tasks))]
            thresholds = calibrate(
                replace(starter.tasks, u=np.array(draws)),
                starter.entities,
                classes=starter.classes,
                method=method,
                n_min=n_min,
            )
            return Calibration(thresholds, Guarantee.BORROWED, STARTER_VERSION)
    nothing = TaskRows.of([], np.zeros(0))
    thresholds = calibrate(nothing, classes=tagger.space.classes, method=method, n_min=n_min, allow_empty=True)
    return Calibration(thresholds, Guarantee.NONE, STARTER_VERSION)
