"""Sets at new thresholds from lists that were made before: no forward pass, no decoding (METHODS 8.6).

A served set keeps the best labelings of its text with their probabilities, and all candidate spans. A new threshold
version cuts another set from the same list. Only where the list does not reach to the new set's end, or was made by a
method whose sets are no heads of a list, the model is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from backend.predictor import Prediction, Predictor
from backend.stopwatch import Stopwatch
from backend.store.projects import text_hash
from backend.store.ranked import RankedList, unpack_ranked
from backend.tagger.spans import CharSpan
from backend.tagger.tagger import Tagged
from backend.tagger.tokens import Token, tokenize
from conformal.errors import ConformalError, RankedListTooShort
from conformal.full import Ranked
from conformal.labels import LabelSpace, Span
from conformal.prediction import answering_thresholds, predict_set
from conformal.scores import boundary_u
from conformal.subsequence import Candidates, EntityMethod, with_outside
from conformal.trellis import Potentials


@dataclass(frozen=True)
class Remembered:
    """What a task's last set was cut from: the packed list, the stratum and language of the text."""

    ranked: bytes
    stratum: str
    language: str
    entity_method: EntityMethod


class RememberingPredictor(Predictor):
    """A predictor that cuts sets from remembered lists where it can, and asks the model for the others.

    Lists are by (task, hash of its text), so a task whose text was edited is predicted anew. `reused` and `computed`
    count which way was taken.
    """

    def __init__(self, predictor: Predictor, lists: Mapping[tuple[str, bytes], Remembered]) -> None:
        vars(self).update(vars(predictor))
        self._lists = lists
        self.reused = self.computed = 0

    def predict(
        self,
        texts: Sequence[str],
        *,
        languages: Sequence[str | None] | None = None,
        tasks: Sequence[str | int] | None = None,
        fixed: Sequence[Sequence[CharSpan]] | None = None,
        watch: Stopwatch | None = None,
    ) -> list[Prediction]:
        """Return the sets of each text, in order, as `Predictor.predict`."""
        if tasks is None or fixed is not None:
            return super().predict(texts, languages=languages, tasks=tasks, fixed=fixed, watch=watch)
        made: list[Prediction | None] = [self._again(text, str(task)) for text, task in zip(texts, tasks, strict=True)]
        missing = [i for i, each in enumerate(made) if each is None]
        if missing:
            fresh = super().predict(
                [texts[i] for i in missing],
                languages=None if languages is None else [languages[i] for i in missing],
                tasks=[tasks[i] for i in missing],
                watch=watch,
            )
            for i, each in zip(missing, fresh, strict=True):
                made[i] = each
        self.reused += len(texts) - len(missing)
        self.computed += len(missing)
        return [each for each in made if each is not None]

    def _again(self, text: str, task: str) -> Prediction | None:
        remembered = self._lists.get((task, text_hash(text)))
        if remembered is None or remembered.entity_method != self.calibration.thresholds.entity_method:
            return None
        try:
            return rethreshold(self, text, remembered, u=boundary_u(*self._draw, task))
        except ConformalError:  # too short, another label space, a stratum that is no more: the model knows
            return None


def rethreshold(predictor: Predictor, text: str, remembered: Remembered, *, u: float) -> Prediction:
    """Return the sets of a text under the predictor's thresholds, from the list of an earlier one.

    Equal to what a forward pass would give, because the list holds all that a set is decided by. `u` is the task's
    draw for randomised boundaries.

    Raises:
        RankedListTooShort: when the set may reach beyond the list; other errors of `conformal` when the list does not
            fit the thresholds at all.
    """
    space = predictor.tagger.space
    thresholds, fallback = predictor.calibration.thresholds, predictor.calibration.fallback
    others = None if fallback is None else fallback.thresholds
    if thresholds.entity_method.needs_rank:
        raise RankedListTooShort("expected ranks of candidate spans, got a list that does not keep them")
    packed = unpack_ranked(remembered.ranked)
    if packed.classes != space.classes:
        raise RankedListTooShort("expected a list over the classes of the project, got one over others")
    tokens = tuple(tokenize(text))
    ranked, candidates = _listed(packed, tokens, space)
    answering = answering_thresholds(thresholds, others, stratum=remembered.stratum)
    sets = predict_set(
        None,
        space,
        stratum=remembered.stratum,
        thresholds=thresholds,
        fallback=others,
        alpha=predictor.alpha,
        u=u if answering.method.needs_u else None,
        max_shown=predictor.max_shown,
        max_sequences=predictor.max_sequences,
        ranked=ranked,
        candidates=candidates,
    )
    more = sets.open or (sets.set_size or 0) > len(sets.labelings)
    if more and len(sets.labelings) < predictor.max_shown and ranked.rest > -np.inf:
        raise RankedListTooShort("expected as many labelings as are shown, got fewer in the list")
    # The potentials are what is spared; nothing that is made of a prediction looks at them.
    tagged = Tagged(text, tokens, cast("Potentials", None), remembered.language)
    return Prediction(
        tagged,
        sets,
        predictor.calibration.guarantee_for(remembered.stratum),
        predictor.calibration.version,
        predictor.model_version,
        space,
        ranked,
        candidates,
        (),
        predictor.calibration.remark,
    )


def _listed(packed: RankedList, tokens: Sequence[Token], space: LabelSpace) -> tuple[Ranked, Candidates]:
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
        places = [(starts[each.start], ends[each.end]) for each in packed.candidates]
    except KeyError:
        raise RankedListTooShort("expected a list over the tokens of the text, got one over others") from None
    logs = np.array(packed.log_probabilities, dtype=np.float64)
    rest = -np.inf if packed.exhausted or not logs.size else float(logs[-1])
    width = len(space.classes)
    probabilities = np.array([each.probabilities for each in packed.candidates], dtype=np.float64)
    first, last = np.array(places, dtype=np.int64).reshape(-1, 2).T
    return Ranked(logs, labels, rest), Candidates(first, last, with_outside(probabilities.reshape(len(places), width)))
