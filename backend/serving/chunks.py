"""A chunk of tasks to their entries: from the cache, from whoever computes them already, or from the model."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.errors import BackendError
from backend.labelstudio.interactive import read_given
from backend.labelstudio.payloads import TaskIn, Unpredictable, read_text
from backend.labelstudio.render import Result, render, render_empty, render_suggestion
from backend.logs import stack_of
from backend.outcome import Outcome, outcome_of
from backend.serving.blindness import BlindScores
from backend.serving.cache import AnswerCache
from backend.serving.fetching import allowed_hosts, fetch_text
from backend.serving.gate import FairGate
from backend.serving.measures import Measures
from backend.serving.presenting import Met, Present, Presentation
from backend.serving.recording import Recorder, ServedBatch, ServedTask
from backend.settings import Settings
from backend.stopwatch import Stopwatch
from backend.store.projects import text_hash

if TYPE_CHECKING:
    from backend.serving.views import View

_log = logging.getLogger(__name__)

Key = tuple[object, ...]

RECORD_AGAIN = 600.0  # seconds after which a task that is served again, unchanged, is recorded again
_REMEMBERED = 50_000


@dataclass(frozen=True)
class Chunk:
    """Tasks of one request that are worked on together.

    `ready` are outcomes that other processes made, by (task, hash of its text); those of another version do not count.
    `opened` says that somebody has opened the task: Label Studio asks for a single one then, and for many otherwise.
    """

    view: View
    label_config: str
    tasks: tuple[TaskIn | None, ...]
    ready: Mapping[tuple[str, bytes], Outcome] = field(default_factory=dict)
    opened: bool = False


class _Asked(NamedTuple):
    """A task with a text, the text's hash, and the key of its answer."""

    task: TaskIn
    text: str
    digest: bytes
    key: Key


class _Answer(NamedTuple):
    """A task with its outcome (None: the prediction failed) and its draw; `blind` is by the draw that is kept.

    `place` is the score that stands for it if it was drawn blind.
    """

    asked: _Asked
    outcome: Outcome | None
    shown: Presentation
    blind: bool
    place: float | None


class ChunkPredictor:
    """Predicts chunks and records them. Safe to share between threads."""

    def __init__(
        self,
        settings: Settings,
        *,
        gate: FairGate,
        cache: AnswerCache[Key, Outcome],
        recorder: Recorder,
        measures: Measures,
        present: Present,
        blind_scores: BlindScores,
    ) -> None:
        self._settings, self._gate, self._cache = settings, gate, cache
        self._recorder, self._measures = recorder, measures
        self._present, self._blind_scores = present, blind_scores
        self._hosts = allowed_hosts(settings.task_hosts)
        self._recorded: OrderedDict[Key, float] = OrderedDict()

    def predict(self, chunk: Chunk) -> list[list[Result]]:
        """Return one entry per task, in order; never raises for a task's sake."""
        watch = Stopwatch()
        view = chunk.view
        asked: list[_Asked | None] = [self._ask(view, task) for task in chunk.tasks]
        found = [each for each in asked if each is not None]
        shown = self._present(view.project, [_met(each) for each in found])
        outcomes = {
            each.key: outcome
            for each in found
            if (outcome := chunk.ready.get((each.task.id, each.digest))) is not None
            and outcome.model_version == view.model_version
        }
        outcomes |= self._answers(view, [each for each in found if each.key not in outcomes], watch)
        visible = [
            outcomes[each.key].score
            for each, how in zip(found, shown, strict=True)
            if each.key in outcomes and not how.blind
        ]
        answers = [
            _Answer(
                each,
                outcomes.get(each.key),
                how,
                how.blind,
                self._place(view, each, how, beside=visible) if how.blind else None,
            )
            for each, how in zip(found, shown, strict=True)
        ]
        with watch.measure("storing"):
            # Before anyone sees it: the draw that is kept decides what is shown.
            answered = iter(self._record(chunk, answers))
        with watch.measure("rendering"):
            entries = [
                render_empty(view.model_version) if each is None else self._entry(view, next(answered))
                for each in asked
            ]
        for stage, seconds in watch.seconds.items():
            self._measures.stages.labels(stage).inc(seconds)
        return entries

    def suggest(
        self, view: View, task: TaskIn | None, regions: Sequence[Mapping[str, Any]], *, label_config: str
    ) -> Result:
        """Return the answer of interactive mode: the best labelings that hold what the annotator fixed.

        Nothing for a blind task.
        """
        asked = self._ask(view, task)
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
            return render_empty(view.model_version, score=self._place(view, asked, shown))[0]
        given = read_given(regions, asked.task, target=view.target, model_version=view.model_version)
        from backend.tagger.spans import CharSpan  # noqa: PLC0415 - the view has the model's libraries already

        fixed = [CharSpan(*span) for span in given.fixed]
        try:
            with self._gate.turn(view.project):
                made = view.predictor.predict([asked.text], languages=[asked.task.language], fixed=[fixed])[0]
        except Exception as error:  # noqa: BLE001 - an annotator at work gets an answer, whatever happened
            self._refuse(Unpredictable.FAILED, error)
            return nothing
        for lost in made.ignored:
            _log.info(
                "a fixed region cannot be expressed: its tokens are left alone", extra={"reason": lost.reason.value}
            )
        self._measures.predicted.labels("interactive").inc()
        return render_suggestion(
            outcome_of(made),
            asked.text,
            target=view.target,
            project=view.project,
            task=asked.task.id,
            present=given.present,
        )

    def _ask(self, view: View, task: TaskIn | None) -> _Asked | None:
        tag = view.target.text
        found = read_text(task, tag, max_text=self._settings.max_text)
        if found is Unpredictable.URL and task is not None and task.data is not None:
            found = fetch_text(str(task.data[tag.key]), hosts=self._hosts, max_text=self._settings.max_text)
        if isinstance(found, Unpredictable) or task is None:
            self._refuse(found if isinstance(found, Unpredictable) else Unpredictable.NOT_AN_OBJECT)
            return None
        predictor = view.predictor
        digest = text_hash(found)
        key = (
            digest,
            predictor.tagger.hash,
            predictor.calibration.version,
            predictor.alpha,
            view.project,
            view.target.digest,
            task.language,
            task.id if view.names_matter else None,
        )
        return _Asked(task, found, digest, key)

    def _answers(self, view: View, asked: Sequence[_Asked], watch: Stopwatch) -> dict[Key, Outcome]:
        """Return the outcomes by key; keys whose prediction failed are missing."""
        by_key = {each.key: each for each in asked}
        claim = self._cache.claim(list(by_key))
        answers = dict(claim.found)
        self._count("cache", len(claim.found))
        self._count("shared", len(claim.others))
        if claim.mine:
            mine = [by_key[key] for key in claim.mine]
            try:
                self._measures.waiting.set(self._gate.waiting)
                with self._gate.turn(view.project):
                    self._measures.waiting.set(self._gate.waiting)
                    made = self._make(view, mine, watch)
            except BaseException as error:
                self._cache.give_up(claim.mine, error)
                raise
            for key, outcome in made.items():
                self._cache.keep(key, outcome)
                self._measures.observe(outcome)
            self._cache.give_up(claim.mine, BackendError("the prediction failed"))  # those that were not made
            self._count("model", len(made))
            answers |= made
        for key, future in claim.others.items():
            try:
                answers[key] = future.result()
            except Exception:  # noqa: BLE001 - whoever computed it has logged why
                self._refuse(Unpredictable.FAILED)
        return answers

    def _make(self, view: View, asked: Sequence[_Asked], watch: Stopwatch) -> dict[Key, Outcome]:
        """Predict together; if that fails, one by one, so that only the task at fault goes without."""
        try:
            return self._predict(view, asked, watch)
        except Exception as error:  # noqa: BLE001 - one bad task must not fail the batch
            if len(asked) == 1:
                self._refuse(Unpredictable.FAILED, error)
                return {}
        made: dict[Key, Outcome] = {}
        for each in asked:
            made |= self._make(view, [each], watch)
        return made

    def _predict(self, view: View, asked: Sequence[_Asked], watch: Stopwatch) -> dict[Key, Outcome]:
        made = view.predictor.predict(
            [each.text for each in asked],
            languages=[each.task.language for each in asked],
            tasks=[each.task.id for each in asked],
            watch=watch,
        )
        with watch.measure("rendering"):
            return {each.key: outcome_of(prediction) for each, prediction in zip(asked, made, strict=True)}

    def _record(self, chunk: Chunk, answers: Sequence[_Answer]) -> list[_Answer]:
        """Have what is served recorded, and return it with the blindness that is kept."""
        view = chunk.view
        new = {
            i: each
            for i, each in enumerate(answers)
            if each.asked.task.id and self._is_new(view, each.asked, each.shown)
        }
        if not new:
            return list(answers)
        served = tuple(
            ServedTask(
                each.asked.task.id,
                each.asked.text,
                each.asked.task.created_at,
                each.shown.draw,
                each.outcome,
                each.place,
            )
            for each in new.values()
        )
        batch = ServedBatch.of(view.project, chunk.label_config, view.model, served, opened=chunk.opened)
        blind = self._recorder.record(batch)
        for (i, answer), kept in zip(list(new.items()), blind, strict=True):
            if answer.blind != kept:
                # Another process drew it a moment earlier, under another order; its draw is the one that counts.
                self._present.forget(view.project, _met(answer.asked))
                new[i] = answer._replace(blind=kept)
        scores = [each.outcome.score for each in new.values() if each.outcome is not None and not each.blind]
        self._blind_scores.add(view.project, view.model, scores, version=view.predictor.calibration.version)
        return [new.get(i, each) for i, each in enumerate(answers)]

    def _entry(self, view: View, answer: _Answer) -> list[Result]:
        if answer.blind:
            place = answer.place
            return render_empty(
                view.model_version, score=self._place(view, answer.asked, answer.shown) if place is None else place
            )
        if answer.outcome is None:
            return render_empty(view.model_version)
        task = answer.asked
        return render(answer.outcome, task.text, target=view.target, project=view.project, task=task.task.id)

    def _place(self, view: View, asked: _Asked, shown: Presentation, beside: Sequence[float] = ()) -> float:
        return self._blind_scores.place(
            view.project,
            view.model,
            asked.task.id,
            shown.quantile,
            version=view.predictor.calibration.version,
            beside=beside,
        )

    def _is_new(self, view: View, asked: _Asked, shown: Presentation) -> bool:
        """Whether this set of this task still has to be recorded, by this process's memory."""
        key = (asked.key, asked.task.id, view.project, shown.blind)
        now = time.monotonic()
        last = self._recorded.get(key)
        if last is not None and now - last < RECORD_AGAIN:
            return False
        self._recorded[key] = now
        while len(self._recorded) > _REMEMBERED:
            self._recorded.popitem(last=False)
        return True

    def _refuse(self, reason: Unpredictable, error: BaseException | None = None) -> None:
        self._measures.unpredictable.labels(reason.name.lower()).inc()
        extra: dict[str, object] = {"reason": reason.value}
        if error is not None:
            extra |= {"error": type(error).__name__, "stack": stack_of(error)}
        _log.warning("a task has no prediction", extra=extra)

    def _count(self, source: str, count: int) -> None:
        if count:
            self._measures.predicted.labels(source).inc(count)


def _met(asked: _Asked) -> Met:
    return Met(asked.task.id, asked.digest)
