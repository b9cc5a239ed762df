"""Text to prediction sets: the one service object, used by the command line, the server and the worker alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from backend.constraints import constrain
from backend.starter import load_starter, starter_name
from backend.stopwatch import Stopwatch
from backend.tagger.spans import CharSpan, Inexpressible, to_char_spans
from backend.tagger.tagger import Tagged, Tagger
from conformal.full import Ranked
from conformal.labels import LabelSpace, Span
from conformal.prediction import PredictionSet, answering_thresholds, predict_set, text_candidates, with_ranks
from conformal.rows import TaskRows
from conformal.scores import Method, boundary_u
from conformal.subsequence import Candidates, candidate_spans, listing_floor
from conformal.thresholds import Thresholds, calibrate
from conformal.trellis import entity_marginals, kbest

STARTER_VERSION = 0  # the database's own versions start at 1
LISTED = 16  # labelings listed for every text: most sets lie within, and a later threshold can be tried on them


class Guarantee(StrEnum):
    """What the thresholds entitle us to say; see PRODUCT's words."""

    OWN = "own"
    ASSISTED = "assisted"
    BORROWED = "borrowed"
    NONE = "none"


@dataclass(frozen=True)
class Calibration:
    """Thresholds together with what they are worth and which version they are.

    `fallback` answers where these have too few labels, by counts alone (METHODS 8.2); its sets say what it is worth.
    `remark` is said beside the promise of assisted sets: the measured gap.
    """

    thresholds: Thresholds
    guarantee: Guarantee
    version: int
    fallback: Calibration | None = None
    remark: str = ""

    def guarantee_for(self, stratum: str) -> Guarantee:
        """Return what may be said about the set of a text in this stratum; nothing of a method without a proof."""
        if self.worth_for(stratum) != "exact":
            return Guarantee.NONE
        if self.thresholds.pool(stratum).pool.calibrated:
            return self.guarantee
        other = self.fallback
        if other is None or answering_thresholds(self.thresholds, other.thresholds, stratum=stratum) is self.thresholds:
            return Guarantee.NONE
        return other.guarantee

    def worth_for(self, stratum: str) -> str:
        """Return "exact", or what the method that answers there is instead: approximate or heuristic."""
        fallback = None if self.fallback is None else self.fallback.thresholds
        return answering_thresholds(self.thresholds, fallback, stratum=stratum).method.worth


@dataclass(frozen=True)
class Prediction:
    """The sets of one text, in characters, and the list of labelings they were cut from.

    `ignored` are fixed spans that no labeling of the tokens says; see `backend.constraints`.
    """

    tagged: Tagged
    sets: PredictionSet
    guarantee: Guarantee
    threshold_version: int
    model_version: str
    space: LabelSpace = field(repr=False)
    ranked: Ranked = field(repr=False)
    candidates: Candidates = field(repr=False)
    ignored: tuple[Inexpressible, ...] = ()
    remark: str = ""
    worth: str = "exact"  # what the method's sets are worth: "approximate" and "heuristic" ones promise nothing

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
        fixed: Sequence[Sequence[CharSpan]] | None = None,
        watch: Stopwatch | None = None,
    ) -> list[Prediction]:
        """Return the sets of each text, in order.

        Args:
            tasks: names each text for randomised boundaries; without it, the text itself does.
            fixed: spans of each text that are given. Labelings are then the best of those that hold exactly these
                spans there, with probabilities conditional on them (METHODS 1); a set of those promises nothing.
            watch: told how long tagging, decoding and sets took.

        Raises:
            NoLegalLabeling: when no labeling holds the fixed spans.
        """
        clock = watch or Stopwatch()
        names = texts if tasks is None else tasks
        with clock.measure("tagging"):
            tagged = self.tagger.potentials(texts, languages=languages)
        ignored: list[tuple[Inexpressible, ...]] = [()] * len(tagged)
        if fixed is not None:
            for i, spans in enumerate(fixed):
                tagged[i], ignored[i] = constrain(tagged[i], spans, space=self.tagger.space)
        with clock.measure("decoding"):
            ranked, candidates = self._decode(tagged)
        with clock.measure("sets"):
            made = [self._predict(*each) for each in zip(tagged, names, ranked, candidates, ignored, strict=True)]
        if fixed is None:
            return made
        return [
            replace(each, guarantee=Guarantee.NONE) if spans else each for each, spans in zip(made, fixed, strict=True)
        ]

    def _decode(self, tagged: Sequence[Tagged]) -> tuple[list[Ranked], list[Candidates]]:
        """List the best labelings and the candidate spans of all texts, in two calls that hold no lock."""
        thresholds, space = self.calibration.thresholds, self.tagger.space
        potentials = [each.potentials for each in tagged]
        ranked = [Ranked.of(best) for best in kbest(potentials, max(self.max_shown, LISTED))]
        best = [space.spans(each.labels[0]) for each in ranked]
        method = thresholds.entity_method
        if method.top_k is not None:
            candidates = [
                text_candidates(each, space, thresholds=thresholds, best=spans)
                for each, spans in zip(potentials, best, strict=True)
            ]
        else:
            marginals = entity_marginals(potentials, space, floor=listing_floor(space, method.p_min))
            candidates = [
                with_ranks(candidate_spans(each, space, p_min=method.p_min, extra=spans), of, method)
                for each, spans, of in zip(marginals, best, potentials, strict=True)
            ]
        return ranked, candidates

    def _predict(
        self,
        tagged: Tagged,
        task: str | int,
        ranked: Ranked,
        candidates: Candidates,
        ignored: tuple[Inexpressible, ...],
    ) -> Prediction:
        thresholds = self.calibration.thresholds
        fallback = None if self.calibration.fallback is None else self.calibration.fallback.thresholds
        secret, project = self._draw
        stratum = thresholds.strata.cell(length=len(tagged.tokens), language=tagged.language, seen=tagged.seen)
        needs_u = answering_thresholds(thresholds, fallback, stratum=stratum).method.needs_u
        sets = predict_set(
            tagged.potentials,
            self.tagger.space,
            stratum=stratum,
            thresholds=thresholds,
            fallback=fallback,
            alpha=self.alpha,
            u=boundary_u(secret, project, task) if needs_u else None,
            max_shown=self.max_shown,
            max_sequences=self.max_sequences,
            ranked=ranked,
            candidates=candidates,
        )
        return Prediction(
            tagged,
            sets,
            self.calibration.guarantee_for(stratum),
            self.calibration.version,
            self.model_version,
            self.tagger.space,
            ranked,
            candidates,
            ignored,
            self.calibration.remark,
            self.calibration.worth_for(stratum),
        )


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
