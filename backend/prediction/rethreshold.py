"""Sets at new thresholds from lists that were made before: no forward pass, no decoding (METHODS 8.6).

A served set keeps the best labelings of its text with their probabilities, and all candidate spans. A new threshold
version cuts another set from the same list. Only where the list does not reach to the new set's end, or was made by a
method whose sets are no heads of a list, the model is asked again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.domain.ranked import RankedList, RankedText
from backend.errors import StoreConflict
from backend.prediction.prediction import Decoded, DecodedUnit, Prediction
from backend.prediction.predictor import Predictor
from backend.store.packed_lists import unpack_ranked
from backend.tagger.tokens import Token, tokenize
from conformal.errors import ConformalError, RankedListTooShort
from conformal.full import Ranked
from conformal.labels import LabelSpace, Span
from conformal.risk import FLOOR
from conformal.subsequence import Candidates, EntityMethod, with_outside


@dataclass(frozen=True)
class Remembered:
    """What a task's last set was cut from: the packed list, the stratum and language of the text."""

    ranked: bytes
    stratum: str
    language: str
    entity_method: EntityMethod


def rethreshold(predictor: Predictor, text: str, remembered: Remembered) -> Prediction | None:
    """Return the sets of a text under the predictor's thresholds, from the list of an earlier one.

    Equal to what a forward pass would give, because the list holds all that a set is decided by. None where only the
    model knows: the set may reach beyond the list, or the list does not fit the thresholds or cannot be read.
    """
    if remembered.entity_method != predictor.calibration.thresholds.entity_method:
        return None
    try:
        return _cut(predictor, text, remembered)
    except (ConformalError, StoreConflict):
        return None


def _cut(predictor: Predictor, text: str, remembered: Remembered) -> Prediction:
    space = predictor.tagger.space
    if predictor.calibration.thresholds.entity_method.needs_rank:
        raise RankedListTooShort("expected ranks of candidate spans, got a list that does not keep them")
    packed = unpack_ranked(remembered.ranked)
    if packed.classes != space.classes:
        raise RankedListTooShort("expected a list over the classes of the project, got one over others")
    flags = predictor.calibration.flags_for(remembered.language)
    if flags is not None and packed.floor > FLOOR:
        raise RankedListTooShort("expected candidate spans down to the floor of flags, got those of an earlier release")
    tokens = tuple(tokenize(text))
    units = _units(packed, tokens, remembered.stratum, space)
    prediction = predictor.cut(Decoded(text, tokens, remembered.language, units))
    for unit, sets in zip(units, prediction.sets.units, strict=True):
        more = sets.open or (sets.set_size or 0) > len(sets.labelings)
        if more and len(sets.labelings) < predictor.max_shown and unit.ranked.rest > -np.inf:
            raise RankedListTooShort("expected as many labelings as are shown, got fewer in the list")
    return prediction


def _units(packed: RankedText, tokens: Sequence[Token], stratum: str, space: LabelSpace) -> tuple[DecodedUnit, ...]:
    """Return the units with their lists in tokens; a list of an earlier release is one unit, of the set's stratum."""
    if len(packed.units) == 1:
        (unit,) = packed.units
        return (DecodedUnit(0, len(tokens), unit.stratum or stratum, *_in_tokens(unit.ranked, tokens, space)),)
    starts = [token.start for token in tokens]
    units: list[DecodedUnit] = []
    for unit in packed.units:
        first, last = bisect_left(starts, unit.start), bisect_left(starts, unit.end)
        lists = _in_tokens(unit.ranked, tokens[first:last], space)
        units.append(DecodedUnit(first, last, unit.stratum, *lists))
    return tuple(units)


def _in_tokens(packed: RankedList, tokens: Sequence[Token], space: LabelSpace) -> tuple[Ranked, Candidates]:
    """Return the list in tokens; every span of it begins and ends with a token, because it was made of them."""
    starts = {token.start: i for i, token in enumerate(tokens)}
    ends = {token.end: i + 1 for i, token in enumerate(tokens)}
    try:
        labels = np.array(
            [
                space.ids([Span(starts[s.start], ends[s.end], s.label) for s in labeling], len(tokens))
                for labeling in packed.labelings
            ],
            dtype=np.int16,
        ).reshape(len(packed.labelings), len(tokens))
        spans = [(starts[each.start], ends[each.end]) for each in packed.candidates]
    except KeyError:
        raise RankedListTooShort("expected a list over the tokens of the text, got one over others") from None
    logs = np.array(packed.log_probabilities, dtype=np.float64)
    rest = -np.inf if packed.exhausted or not logs.size else float(logs[-1])
    width = len(space.classes)
    probabilities = np.array([each.probabilities for each in packed.candidates], dtype=np.float64)
    first, last = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    return Ranked(logs, labels, rest), Candidates(first, last, with_outside(probabilities.reshape(len(spans), width)))
