"""A chunk of tasks to their entries: from the cache, from whoever computes them already, or from the model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachetools import TTLCache

from backend.documents.document import Document, PlainDocument, UnreadableDocument
from backend.domain.precedence import LONG, PROCESS
from backend.domain.records import TextSpan
from backend.domain.text import text_hash
from backend.errors import BackendError
from backend.labelstudio.interactive import Given, read_given
from backend.labelstudio.payloads import TaskIn, Unpredictable, read_shown, url_of
from backend.labelstudio.render import Result, render, render_empty, render_suggestion
from backend.logs import stack_of
from backend.models.gate import FairGate
from backend.models.views import View
from backend.prediction.answer import Answer, answer_of
from backend.prediction.same_words import SameWords, WordIndex, find_same, index_drawn
from backend.prediction.stopwatch import Stopwatch
from backend.serving.blindness import BlindPriorities
from backend.serving.cache import AnswerCache
from backend.serving.fetching import TextFetcher, allowed_hosts
from backend.serving.measures import Measures
from backend.serving.presenting import Met, Present, Presentation
from backend.serving.recording import Recorder, ServedBatch, ServedTask
from backend.serving.same_words import ProjectWords
from backend.settings import Settings

_log = logging.getLogger(__name__)

Key = tuple[object, ...]

RECORD_AGAIN = 600.0  # seconds after which a task that is served again, unchanged, is recorded again
_REMEMBERED = 50_000


class Question(NamedTuple):
    """A task with what it shows, the hash of its text, and the key of its answer."""

    task: TaskIn
    document: Document
    digest: bytes
    key: Key

    @property
    def text(self) -> str:
        """The plain text."""
        return self.document.text


ReadyAnswer = Callable[[Question], Answer | None]
"""Gives the answer of a task that was made elsewhere, None where the model must be asked."""


@dataclass(frozen=True)
class Chunk:
    """Tasks of one request that are worked on together.

    `ready` gives answers that were made elsewhere; those of another version do not count. `opened` says that somebody
    has opened the task: Label Studio asks for a single one then, and for many otherwise.
    """

    view: View
    label_config: str
    tasks: tuple[TaskIn | None, ...]
    ready: ReadyAnswer | None = None
    opened: bool = False


class _Answered(NamedTuple):
    """A task with its answer (None: the prediction failed) and its draw; `blind` is by the draw that is kept.

    `stand_in` is the priority that stands for it if it was drawn blind. `same` are words that people labelled
    elsewhere, at places where the best labeling has nothing; none for one that was drawn blind.
    """

    question: Question
    answer: Answer | None
    shown: Presentation
    blind: bool
    stand_in: float | None
    same: tuple[SameWords, ...] = ()


class ChunkPredictor:
    """Predicts chunks and records them. Safe to share between threads."""

    def __init__(
        self,
        settings: Settings,
        *,
        gate: FairGate,
        cache: AnswerCache[Key, Answer],
        recorder: Recorder,
        measures: Measures,
        present: Present,
        blind_priorities: BlindPriorities,
        words: ProjectWords,
    ) -> None:
        self._settings, self._gate, self._cache = settings, gate, cache
        self._long_gate = FairGate(slots=1)
        self._recorder, self._measures = recorder, measures
        self._present, self._blind_priorities, self._words = present, blind_priorities, words
        self._fetcher = TextFetcher(
            allowed_hosts(settings.task_hosts), private=settings.task_hosts_private, max_text=settings.max_text
        )
        self._recorded: TTLCache[Key, bool] = TTLCache(_REMEMBERED, RECORD_AGAIN)
        self._lock = threading.Lock()

    def predict(self, chunk: Chunk) -> list[list[Result]]:
        """Return one entry per task, in order; never raises for a task's sake."""
        watch = Stopwatch()
        view = chunk.view
        fetched = self._fetcher.fetch_all(filter(None, (url_of(task, view.target.text) for task in chunk.tasks)))
        questions: list[Question | None] = [self._ask(view, task, fetched) for task in chunk.tasks]
        with PROCESS.work(_longest([each.text for each in questions if each is not None])):
            entries = self._entries(chunk, questions, watch)
        for stage, seconds in watch.seconds.items():
            self._measures.stages.labels(stage).inc(seconds)
        return entries

    def _entries(self, chunk: Chunk, questions: Sequence[Question | None], watch: Stopwatch) -> list[list[Result]]:
        view = chunk.view
        asked = [each for each in questions if each is not None]
        shown = self._present(view.project, [_met(each) for each in asked])
        answers = self._ready(chunk, asked)
        answers |= self._answers(view, [each for each in asked if each.key not in answers], watch)
        visible = [
            answers[each.key].priority
            for each, how in zip(asked, shown, strict=True)
            if each.key in answers and not how.blind
        ]
        answered = [
            _Answered(
                each,
                answers.get(each.key),
                how,
                how.blind,
                self._stand_in(view, each, how, beside=visible) if how.blind else None,
                self._same(view, each, how, answers.get(each.key)),
            )
            for each, how in zip(asked, shown, strict=True)
        ]
        with watch.measure("storing"):
            # Before anyone sees it: the draw that is kept decides what is shown.
            recorded = iter(self._record(chunk, answered))
        with watch.measure("rendering"):
            return [
                render_empty(view.model_version) if each is None else self._entry(view, next(recorded))
                for each in questions
            ]

    def close(self) -> None:
        """Write what is left of the record."""
        self._recorder.close()

    def suggest(
        self, view: View, task: TaskIn | None, regions: Sequence[Mapping[str, Any]], *, label_config: str
    ) -> Result:
        """Return the answer of interactive mode: the best labelings that hold what the annotator fixed.

        Nothing for a blind task.
        """
        asked = self._ask(view, task, self._fetcher.fetch_all(filter(None, [url_of(task, view.target.text)])))
        nothing = render_empty(view.model_version)[0]
        if asked is None:
            return nothing
        shown = self._present(view.project, [_met(asked)])[0]
        if asked.task.id and not shown.kept and shown.draw is not None:
            # Asked before any prediction was fetched: the draw is kept before anything is seen.
            drawn = ServedTask(asked.task.id, asked.text, asked.task.created_at, shown.draw, None)
            blind = self._recorder.record(ServedBatch.of(view.project, label_config, view.model, (drawn,)))[0]
            if blind != shown.blind:
                self._present.forget(view.project, _met(asked))
        else:
            blind = shown.blind
        if blind:  # blind means blind: completing what was drawn would show what the model thinks
            self._measures.predicted.labels("blind").inc()
            return render_empty(view.model_version, priority=self._stand_in(view, asked, shown))[0]
        given = read_given(regions, asked.task, asked.document, target=view.target, model_version=view.model_version)
        if view.target.blank:
            return self._suggest_blank(view, asked, shown, given=given, label_config=label_config) or nothing
        try:
            with PROCESS.work(len(asked.text)), self._lane([asked.text]).turn(view.project):
                (prediction,) = view.predictor.predict(
                    [asked.text], languages=[asked.task.language], fixed=[given.fixed]
                )
        except Exception as error:  # noqa: BLE001 - an annotator at work gets an answer, whatever happened
            self._refuse(Unpredictable.FAILED, error)
            return nothing
        for lost in prediction.ignored:
            _log.info(
                "a fixed region cannot be expressed: its tokens are left alone", extra={"reason": lost.reason.value}
            )
        self._measures.predicted.labels("interactive").inc()
        answer = answer_of(prediction)
        same = _same_here(view, asked, given, beside=answer.best.spans)
        return _suggestion(view, asked, given, answer, same=same)

    def _suggest_blank(
        self, view: View, asked: Question, shown: Presentation, *, given: Given, label_config: str
    ) -> Result | None:
        """Return the same words elsewhere in a task that no model knows anything about; None when there are none.

        It is recorded before it is seen, because the task is not blank any more (METHODS 13.1).
        """
        same = _same_here(view, asked, given)
        answer = self._answers(view, [asked], Stopwatch()).get(asked.key) if same else None
        if answer is None:
            return None
        chunk = Chunk(view, label_config, (asked.task,), opened=True)
        (recorded,) = self._record(chunk, [_Answered(asked, answer, shown, blind=False, stand_in=None, same=same)])
        if recorded.blind:
            return None
        return _suggestion(view, asked, given, answer, same=same)

    def _same(self, view: View, asked: Question, shown: Presentation, answer: Answer | None) -> tuple[SameWords, ...]:
        """Return the words that people labelled elsewhere in the project, where the best labeling has nothing.

        Nothing for a task that was drawn blind, and for one whose draw is not known.
        """
        if answer is None or not asked.task.id or shown.draw is None or shown.blind:
            return ()
        return _find(view, asked, lambda: self._words.index(view.project), taken=answer.best.spans, task=asked.task.id)

    def _waiting(self) -> int:
        return self._gate.waiting + self._long_gate.waiting

    def _lane(self, texts: Sequence[str]) -> FairGate:
        """Return the gate for these texts: long ones wait for one another, and short ones never for them."""
        return self._long_gate if _longest(texts) > LONG else self._gate

    def _ask(self, view: View, task: TaskIn | None, fetched: Mapping[str, str | Unpredictable]) -> Question | None:
        tag = view.target.text
        shown: Document | Unpredictable
        try:
            url = url_of(task, tag)
            text = None if url is None else fetched[url]
            if text is None:
                shown = read_shown(task, tag, max_text=self._settings.max_text)
            else:
                shown = text if isinstance(text, Unpredictable) else PlainDocument(text)
        except UnreadableDocument as error:
            self._refuse(Unpredictable.UNREADABLE, detail=str(error))
            return None
        if isinstance(shown, Unpredictable) or task is None:
            self._refuse(shown if isinstance(shown, Unpredictable) else Unpredictable.NOT_AN_OBJECT)
            return None
        predictor = view.predictor
        digest = text_hash(shown.text)
        key = (
            digest,
            predictor.tagger.hash,
            predictor.calibration.version,
            predictor.alpha,
            view.project,
            view.target.digest,
            task.language,
        )
        return Question(task, shown, digest, key)

    def _ready(self, chunk: Chunk, asked: Sequence[Question]) -> dict[Key, Answer]:
        """Return the answers that were made elsewhere, by key; trouble with one leaves its task to the model."""
        answers: dict[Key, Answer] = {}
        if chunk.ready is None:
            return answers
        for each in asked:
            try:
                answer = None if each.key in answers else chunk.ready(each)
            except Exception as error:  # noqa: BLE001 - whatever it was, the model can be asked
                _log.warning("an answer that was made before is not used", extra={"error": type(error).__name__})
                continue
            if answer is not None and answer.model_version == chunk.view.model_version:
                answers[each.key] = answer
        return answers

    def _answers(self, view: View, asked: Sequence[Question], watch: Stopwatch) -> dict[Key, Answer]:
        """Return the answers by key; keys whose prediction failed are missing."""
        by_key = {each.key: each for each in asked}
        claim = self._cache.claim(list(by_key))
        answers = dict(claim.found)
        self._count("cache", len(claim.found))
        self._count("shared", len(claim.others))
        if claim.mine:
            mine = [by_key[key] for key in claim.mine]
            try:
                self._measures.waiting.set(self._waiting())
                with self._lane([each.text for each in mine]).turn(view.project):
                    self._measures.waiting.set(self._waiting())
                    predicted = self._make(view, mine, watch)
            except BaseException as error:
                self._cache.give_up(claim.mine, error)
                raise
            for key, answer in predicted.items():
                self._cache.keep(key, answer)
                self._measures.observe(answer)
            self._cache.give_up(claim.mine, BackendError("the prediction failed"))  # those that were not made
            self._count("model", len(predicted))
            answers |= predicted
        for key, future in claim.others.items():
            try:
                answers[key] = future.result()
            except Exception:  # noqa: BLE001 - whoever computed it has logged why
                self._refuse(Unpredictable.FAILED)
        return answers

    def _make(self, view: View, asked: Sequence[Question], watch: Stopwatch) -> dict[Key, Answer]:
        """Predict together; if that fails, one by one, so that only the task at fault goes without."""
        try:
            return self._predict(view, asked, watch)
        except Exception as error:  # noqa: BLE001 - one bad task must not fail the batch
            if len(asked) == 1:
                self._refuse(Unpredictable.FAILED, error)
                return {}
        predicted: dict[Key, Answer] = {}
        for each in asked:
            predicted |= self._make(view, [each], watch)
        return predicted

    def _predict(self, view: View, asked: Sequence[Question], watch: Stopwatch) -> dict[Key, Answer]:
        predictions = view.predictor.predict(
            [each.text for each in asked], languages=[each.task.language for each in asked], watch=watch
        )
        with watch.measure("rendering"):
            return {each.key: answer_of(prediction) for each, prediction in zip(asked, predictions, strict=True)}

    def _record(self, chunk: Chunk, answered: Sequence[_Answered]) -> list[_Answered]:
        """Have what is served recorded, and return it with the blindness that is kept."""
        view = chunk.view
        new = {i: each for i, each in enumerate(answered) if each.question.task.id and self._is_new(view, each)}
        if not new:
            return list(answered)
        served = tuple(
            ServedTask(
                each.question.task.id,
                each.question.text,
                each.question.task.created_at,
                each.shown.draw,
                each.answer,
                each.stand_in,
                bool(each.same),
            )
            for each in new.values()
        )
        batch = ServedBatch.of(view.project, chunk.label_config, view.model, served, opened=chunk.opened)
        blind = self._recorder.record(batch)
        for (i, each), kept in zip(list(new.items()), blind, strict=True):
            if each.blind != kept:
                # Another process drew it a moment earlier, under another order; its draw is the one that counts.
                self._present.forget(view.project, _met(each.question))
                new[i] = each._replace(blind=kept)
        priorities = [each.answer.priority for each in new.values() if each.answer is not None and not each.blind]
        self._blind_priorities.add(view.project, view.model, priorities, version=view.predictor.calibration.version)
        return [new.get(i, each) for i, each in enumerate(answered)]

    def _entry(self, view: View, answered: _Answered) -> list[Result]:
        question, stand_in = answered.question, answered.stand_in
        if answered.blind:
            if stand_in is None:
                stand_in = self._stand_in(view, question, answered.shown)
            return render_empty(view.model_version, priority=stand_in)
        if answered.answer is None:
            return render_empty(view.model_version)
        return render(
            answered.answer,
            question.document,
            target=view.target,
            project=view.project,
            task=question.task.id,
            same=answered.same,
        )

    def _stand_in(self, view: View, asked: Question, shown: Presentation, beside: Sequence[float] = ()) -> float:
        return self._blind_priorities.stand_in(
            view.project,
            view.model,
            asked.task.id,
            shown.quantile,
            version=view.predictor.calibration.version,
            beside=beside,
        )

    def _is_new(self, view: View, answered: _Answered) -> bool:
        """Whether this set of this task still has to be recorded, by this process's memory.

        What is suggested beside it matters where it is the only thing that is shown.
        """
        asked = answered.question
        led = view.target.blank and bool(answered.same)
        key = (asked.key, asked.task.id, view.project, answered.shown.blind, led)
        with self._lock:
            new = key not in self._recorded
            if new:
                self._recorded[key] = True
        return new

    def _refuse(self, reason: Unpredictable, error: BaseException | None = None, *, detail: str | None = None) -> None:
        self._measures.unpredictable.labels(reason.name.lower()).inc()
        extra: dict[str, object] = {"reason": reason.value}
        if detail is not None:
            extra["detail"] = detail
        if error is not None:
            extra |= {"error": type(error).__name__, "stack": stack_of(error)}
        _log.warning("a task has no prediction", extra=extra)

    def _count(self, source: str, count: int) -> None:
        if count:
            self._measures.predicted.labels(source).inc(count)


def _longest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=0)


def _suggestion(view: View, asked: Question, given: Given, answer: Answer, *, same: Sequence[SameWords]) -> Result:
    return render_suggestion(
        answer,
        asked.document,
        target=view.target,
        project=view.project,
        task=asked.task.id,
        present=given.present,
        same=same,
    )


def _same_here(view: View, asked: Question, given: Given, *, beside: Iterable[TextSpan] = ()) -> tuple[SameWords, ...]:
    """Return the other places of the words that somebody has just labelled in this task."""
    names = view.target.labels
    fixed = (each._replace(label=names.get(each.label, each.label)) for each in given.fixed)
    return _find(view, asked, lambda: index_drawn(asked.text, fixed), taken=(*given.present, *beside), task=None)


def _find(
    view: View, asked: Question, words: Callable[[], WordIndex], *, taken: Iterable[TextSpan], task: str | None
) -> tuple[SameWords, ...]:
    try:
        return find_same(words(), asked.text, taken=taken, labels=view.target.names, task=task)
    except Exception as error:  # noqa: BLE001 - an extra must not cost a task its prediction
        _log.warning("the same words are not suggested", extra={"error": type(error).__name__})
        return ()


def _met(asked: Question) -> Met:
    return Met(asked.task.id, asked.digest)
