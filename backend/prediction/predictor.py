"""Text to prediction sets: the one service object, used by the command line, the server and the worker alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from backend.domain.flag_rule import FlagPromise
from backend.domain.guarantee import Guarantee
from backend.domain.precedence import in_pieces
from backend.domain.records import TextSpan
from backend.prediction.calibration import Calibration
from backend.prediction.constraints import constrain
from backend.prediction.prediction import Decoded, DecodedUnit, Prediction
from backend.prediction.stopwatch import Stopwatch
from backend.tagger.spans import Inexpressible
from backend.tagger.tagger import Tagged, Tagger
from conformal.full import Ranked
from conformal.prediction import Unit, predict_sets, text_candidates, with_ranks
from conformal.risk import FLOOR
from conformal.subsequence import Candidates, candidate_spans, listing_floor
from conformal.trellis import Potentials, entity_marginals, kbest
from conformal.units import join_units

LISTED = 16  # labelings listed for every unit: most sets lie within, and a later threshold can be tried on them


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
        unknown: tuple[str, ...] = (),
    ) -> None:
        self.tagger = tagger
        self.calibration = calibration
        self.alpha = alpha
        self.max_shown = max_shown
        self.max_sequences = max_sequences
        self.unknown = unknown  # labels of the project that stand for no class: no set holds them

    @property
    def model_version(self) -> str:
        """Return `<model name>@<first 8 of its hash>+cal.<threshold version>`."""
        return f"{self.tagger.name}@{self.tagger.hash[:8]}+cal.{self.calibration.version}"

    def predict(
        self,
        texts: Sequence[str],
        *,
        languages: Sequence[str | None] | None = None,
        fixed: Sequence[Sequence[TextSpan]] | None = None,
        watch: Stopwatch | None = None,
    ) -> list[Prediction]:
        """Return the sets of each text, in order.

        Args:
            fixed: spans of each text that are given. Labelings are then the best of those that hold exactly these
                spans there, with probabilities conditional on them (METHODS 1); a set of those promises nothing. Of a
                text of several units only those are decoded that hold such a span; all of them where none does.
            watch: told how long tagging, decoding and sets took.

        Raises:
            NoLegalLabeling: when no labeling holds the fixed spans.
        """
        clock = watch or Stopwatch()
        with clock.measure("tagging"):
            tagged = self.tagger.potentials(texts, languages=languages)
        ignored: list[tuple[Inexpressible, ...]] = [()] * len(tagged)
        if fixed is not None:
            for i, spans in enumerate(fixed):
                tagged[i], ignored[i] = constrain(tagged[i], spans, space=self.tagger.space)
        with clock.measure("decoding"):
            decoded = self._decode(tagged, fixed=fixed)
        with clock.measure("sets"):
            predictions = self._cut_all(decoded)
        if fixed is None:
            return predictions
        return [
            replace(each, guarantee=Guarantee.NONE, ignored=lost, flags=_unpromised(each.flags)) if spans else each
            for each, spans, lost in zip(predictions, fixed, ignored, strict=True)
        ]

    def cut(self, decoded: Decoded, *, chains: Sequence[Potentials] | None = None) -> Prediction:
        """Return the sets of a text that is decoded already, under the thresholds of this predictor.

        Args:
            chains: of its units, for sets that reach beyond their lists or are no head of one.

        Raises:
            RankedListTooShort: when there are no chains and a list does not hold all that its set takes.
            ConformalError: when the text does not fit the thresholds: another label space, an unknown stratum.
        """
        return self._cut_all([(decoded, chains)])[0]

    def _cut_all(self, texts: Sequence[tuple[Decoded, Sequence[Potentials] | None]]) -> list[Prediction]:
        calibration, space, model_version = self.calibration, self.tagger.space, self.model_version
        flags = [calibration.flags_for(text.language) for text, _ in texts]
        units = [
            Unit(
                None if chains is None else chains[i],
                unit.stratum,
                strata,
                unit.ranked,
                unit.candidates,
                None if promise is None else promise.level,
            )
            for (text, chains), promise in zip(texts, flags, strict=True)
            for strata in (text.strata,)
            for i, unit in enumerate(text.units)
        ]
        sets = iter(
            predict_sets(
                in_pieces(units),
                space,
                thresholds=calibration.thresholds,
                fallback=None if calibration.fallback is None else calibration.fallback.thresholds,
                alpha=self.alpha,
                max_shown=self.max_shown,
                max_sequences=self.max_sequences,
            )
        )
        return [
            Prediction(
                text,
                space,
                join_units(text.bounds, list(islice(sets, len(text.units))), max_shown=self.max_shown),
                guarantee=calibration.guarantee_for(*text.strata),
                worth=calibration.worth_for(*text.strata),
                threshold_version=calibration.version,
                model_version=model_version,
                remark=calibration.remark,
                flags=promise,
                out_of_reach=self.unknown,
            )
            for (text, _), promise in zip(texts, flags, strict=True)
        ]

    def _decode(
        self, tagged: Sequence[Tagged], *, fixed: Sequence[Sequence[TextSpan]] | None = None
    ) -> list[tuple[Decoded, tuple[Potentials, ...]]]:
        """List the best labelings and the candidate spans of all units, in two calls that hold no lock.

        Returns each text with the chains of its units.
        """
        thresholds, space = self.calibration.thresholds, self.tagger.space
        wanted = [_touched(each, () if fixed is None else fixed[i]) for i, each in enumerate(tagged)]
        chains = [
            tuple(chain for chain, needed in zip(each.unit_chains(), units, strict=True) if needed)
            for each, units in zip(tagged, wanted, strict=True)
        ]
        potentials = [chain for text in chains for chain in text]
        ranked = [Ranked.of(best) for best in kbest(potentials, max(self.max_shown, LISTED))]
        best = [space.spans(each.labels[0]) for each in in_pieces(ranked)]
        method = thresholds.entity_method
        candidates: list[Candidates]
        if method.top_k is not None:
            candidates = [
                text_candidates(each, space, thresholds=thresholds, best=spans)
                for each, spans in in_pieces(zip(potentials, best, strict=True))
            ]
        else:
            marginals = entity_marginals(potentials, space, floor=listing_floor(space, method.p_min))
            candidates = [
                with_ranks(candidate_spans(each, space, p_min=method.p_min, extra=spans, floor=FLOOR), of, method)
                for each, spans, of in in_pieces(zip(marginals, best, potentials, strict=True))
            ]
        cell, units = thresholds.strata.cell, iter(zip(ranked, candidates, strict=True))
        return [
            (
                Decoded(
                    text.text,
                    text.tokens,
                    text.language,
                    tuple(
                        DecodedUnit(
                            start,
                            end,
                            cell(length=end - start, language=text.language, seen=text.seen),
                            *next(units),
                        )
                        for (start, end), needed in zip(text.units, touched, strict=True)
                        if needed
                    ),
                ),
                parts,
            )
            for text, parts, touched in zip(tagged, chains, wanted, strict=True)
        ]


def _unpromised(flags: FlagPromise | None) -> FlagPromise | None:
    return None if flags is None else replace(flags, guarantee=Guarantee.NONE)


def _touched(tagged: Tagged, fixed: Sequence[TextSpan]) -> list[bool]:
    """Say of each unit whether it is to be decoded: those that hold a fixed span, all of them where none does."""
    held = [any(span.start < end and span.end > start for span in fixed) for start, end in tagged.char_bounds()]
    return held if any(held) else [True] * len(held)
