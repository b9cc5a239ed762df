"""Score confirmed labels that have no calibration row of a model yet, and decide which rows may calibrate.

The one way labels become calibration rows: after an annotation, after a crash, for a loaded file, and for everything
stored when the model changes (METHODS 8.4). Whether a row may calibrate is a function of the draw, of the order in
which tasks were given out, and of what trained the model; when news about these come late, it is decided again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from sqlalchemy.orm import Session

from backend.calibration.label_worth import label_evidence, label_exclusion
from backend.calibration.score_rows import drawn_unit, error_row, unit_rows
from backend.domain.precedence import LONG, PROCESS
from backend.domain.records import (
    LabelRecord,
    ModelRecord,
    ProjectRecord,
    TaskRecord,
    TextSpan,
    UnitRow,
)
from backend.errors import DATABASE_TROUBLE, BackendError, InvalidLabelConfig, StoreConflict, StoreError
from backend.labelstudio.config import match_labels, parse_config
from backend.logs import stack_of
from backend.prediction.scoring import ScoredText, score_labelled
from backend.store import Store
from backend.store.attempts import begin_attempts, end_attempts, fail_attempts, give_back_attempts, set_aside
from backend.store.calibration import record_units
from backend.store.labels import unscored_labels
from backend.store.projects import LOCAL, load_tasks, lock_tasks
from backend.store.sampling import load_history, lock_project
from backend.store.served import prelabelled, shown_blank
from backend.store.training import training_tasks
from backend.tagger.readers import LabelledText
from backend.tagger.tagger import Tagger
from conformal.errors import ConformalError

_log = logging.getLogger(__name__)

_PAGE = 200

Pair = tuple[LabelRecord, TaskRecord]
Scored = tuple[Pair, ScoredText]


@dataclass(frozen=True)
class Cursor:
    """Where to go on: behind this label, among those that were tried before without an end or among all others."""

    after: int = 0
    tried: bool = False


@dataclass(frozen=True)
class CaughtUp:
    """How many labels became rows, how many of those the model cannot express, and how many could not be scored.

    `left` is where to go on when there was no time for all of them, None at the end. `long` are the tasks whose texts
    were too long for this call.
    """

    scored: int = 0
    inexpressible: int = 0
    without_text: int = 0
    without_label: int = 0
    too_long: int = 0
    failed: int = 0
    left: Cursor | None = None
    long: tuple[int, ...] = ()


BEGINNING = Cursor()


def score_unscored(
    store: Store,
    project: ProjectRecord,
    *,
    model: ModelRecord,
    tagger: Tagger,
    progress: Callable[[int], None] | None = None,
    task_ids: Iterable[int] | None = None,
    max_text: int | None = None,
    longest: int | None = None,
    begin: Cursor = BEGINNING,
    most: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> CaughtUp:
    """Score every label of the project that has no row of this model for its present revision.

    Pages through them in order, a short transaction per page; a label that changes meanwhile is left for the next
    call. A label that cannot be scored does not keep the others from it: its reason is recorded, and after a few
    attempts it is set aside (`backend.store.attempts`). Attempts are counted before the work; labels that were tried
    before come last and one at a time, so that one that kills the process takes no other with it again.

    Args:
        progress: is told how many labels were looked at.
        task_ids: look at these tasks only, for labels that just changed; the cost does not grow with the project.
        max_text: longer texts are never predicted, so their labels are not scored: they are set aside at once. This
            depends on the text alone, never on its label.
        longest: labels of longer texts are left to another call, and returned; nothing is counted for them.
        begin: where an earlier call left off.
        most: end after so many labels, or as soon as `stop()` says so, but not before one was looked at.

    Raises:
        StoreAgain, StoreBusy, StoreFull, StoreUnavailable: trouble of the database itself; no label is blamed for it.
    """
    wanted = None if task_ids is None else sorted(set(task_ids))
    work = _Work(
        store, project, model, tagger, task_ids=wanted, max_text=max_text, longest=longest, most=most, stop=stop
    )
    cursor: Cursor | None = begin
    while cursor is not None and not work.is_over():
        cursor, looked = work.page(cursor)
        if progress is not None and looked:
            progress(looked)
    return replace(work.sum, left=cursor)


class _Work:
    """One call of `score_unscored`: what it works with, and what it has done so far."""

    def __init__(
        self,
        store: Store,
        project: ProjectRecord,
        model: ModelRecord,
        tagger: Tagger,
        *,
        task_ids: list[int] | None,
        max_text: int | None,
        longest: int | None,
        most: int | None,
        stop: Callable[[], bool],
    ) -> None:
        self.store, self.project, self.model, self.tagger = store, project, model, tagger
        self.task_ids, self.max_text, self.longest, self.most, self.stop = task_ids, max_text, longest, most, stop
        self.names = class_names(project.label_config, tagger.space.classes)
        # Labels of a project come one by one, in any order, and their rows must not depend on which came together.
        self.chunk = _PAGE if project.uid == LOCAL else 1
        self.sum = CaughtUp()
        self.tried = self.looked = 0

    def is_over(self) -> bool:
        """Whether this call has had its share."""
        return (self.most is not None and self.tried >= self.most) or (self.looked > 0 and self.stop())

    def page(self, cursor: Cursor) -> tuple[Cursor | None, int]:
        """Score the next page; returns where to go on and how many labels were looked at."""
        size = 1 if cursor.tried else min(_PAGE, _PAGE if self.most is None else max(1, self.most - self.tried))
        with self.store.read() as session:
            labels = unscored_labels(
                session,
                self.project.id,
                model_id=self.model.id,
                after=cursor.after,
                limit=size,
                task_ids=self.task_ids,
                tried=cursor.tried,
            )
            tasks = load_tasks(session, [label.task_id for label in labels])
        if not labels:
            return (None if cursor.tried else Cursor(tried=True)), 0
        self.looked += len(labels)
        ready = self._sort_out(labels, tasks)
        last = labels[-1].id
        for part in self._parts(ready):
            counted = self.store.run(
                partial(
                    begin_attempts,
                    project_id=self.project.id,
                    model_id=self.model.id,
                    labels=[label for label, _ in part],
                )
            )
            part = [(label, task) for label, task in part if task.id in counted]  # noqa: PLW2901 - the rest is left out
            reached = self._score(part)
            if reached < len(part):
                last = part[reached - 1][0].id
                break
            if part and part[-1][0].id < last and self.is_over():
                last = part[-1][0].id
                break
        return Cursor(last, cursor.tried), len(labels)

    def _parts(self, ready: Sequence[Pair]) -> Iterator[list[Pair]]:
        """Yield the labels that are scored and written together: a long text alone, for the memory it takes."""
        part: list[Pair] = []
        for pair in ready:
            if self.chunk == 1 and len(pair[1].text or "") > LONG:
                yield from filter(None, (part, [pair]))
                part = []
            else:
                part.append(pair)
        if part:
            yield part

    def _sort_out(self, labels: Sequence[LabelRecord], tasks: Mapping[int, TaskRecord]) -> list[Pair]:
        """Return the labels that can be scored; the others are counted, and set aside where the text is too long."""
        ready: list[Pair] = []
        long: list[LabelRecord] = []
        without_text = without_label = 0
        for label in labels:
            task = tasks[label.task_id]
            if label.spans is None:
                without_label += 1
            elif task.text is None:
                without_text += 1
            elif self.max_text is not None and len(task.text) > self.max_text:
                long.append(label)
            elif self.longest is not None and len(task.text) > self.longest:
                self.sum = replace(self.sum, long=(*self.sum.long, task.id))
            else:
                ready.append((label, task))
        if long:
            reason = f"the text has more than {self.max_text:,} characters (SURESPAN_MAX_TEXT): it is never predicted"
            self.store.run(
                partial(set_aside, project_id=self.project.id, model_id=self.model.id, labels=long, reason=reason)
            )
        self._add(without_text=without_text, without_label=without_label, too_long=len(long))
        return ready

    def _score(self, ready: Sequence[Pair]) -> int:
        """Score labels whose attempts are counted, and write their rows; returns how many were reached."""
        try:
            reached, scored, errors = self._ask_model(ready)
            errors |= self._write(scored)
            if errors:
                aside = self.store.run(partial(fail_attempts, errors=_reasons(errors), model_id=self.model.id))
                self._tell(errors, aside)
        except DATABASE_TROUBLE:
            with suppress(StoreError):
                self._give_back(ready)
            raise
        self._give_back(ready[reached:])
        self.tried += reached
        self._add(failed=len(errors))
        return reached

    def _give_back(self, ready: Sequence[Pair]) -> None:
        """Take back attempts that came to no end for want of time, or of a database: not the labels' fault."""
        if ready:
            tasks = [task.id for _, task in ready]
            self.store.run(partial(give_back_attempts, task_ids=tasks, model_id=self.model.id))

    def _ask_model(self, ready: Sequence[Pair]) -> tuple[int, list[Scored], dict[int, Exception]]:
        if self.chunk > 1 and len(ready) > 1:
            with suppress(Exception):  # whose fault it was, is seen one by one
                texts = list(score_labelled(self.tagger, [self._labelled(pair) for pair in ready], chunk=self.chunk))
                return len(ready), list(zip(ready, texts, strict=True)), {}
        scored: list[Scored] = []
        errors: dict[int, Exception] = {}
        for number, pair in enumerate(ready):
            if number and self.stop():
                return number, scored, errors
            try:
                with PROCESS.work(len(pair[1].text or "")):
                    (text,) = score_labelled(self.tagger, [self._labelled(pair)], chunk=1)
                scored.append((pair, text))
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this label
                errors[pair[1].id] = error
        return len(ready), scored, errors

    def _write(self, scored: list[Scored]) -> dict[int, Exception]:
        """Write rows, all in one transaction or, where one of them is refused, one by one; returns who was refused."""
        errors: dict[int, Exception] = {}
        if not scored:
            return errors
        try:
            self._write_page(scored)
        except DATABASE_TROUBLE:
            raise
        except Exception as error:  # noqa: BLE001 - of one of them, and then of that one alone
            if len(scored) == 1:
                return {scored[0][0][1].id: error}
            for each in scored:
                errors |= self._write([each])
        return errors

    def _write_page(self, scored: list[Scored]) -> None:
        # Made before the transaction: on SQLite everybody who writes waits for its end.
        units = [
            unit_rows(item, drawn=drawn_unit(self.project.uid, task.external_id, len(item.units)))
            for (_, task), item in scored
        ]
        written = self.store.run(
            partial(write_rows, project=self.project, model=self.model, tagger=self.tagger, pairs=scored, units=units)
        )
        self._add(scored=written, inexpressible=sum(not item.expressible for _, item in scored))

    def _labelled(self, pair: Pair) -> LabelledText:
        label, task = pair
        # What stands for no class of the model stays what the person said, and makes the labeling inexpressible.
        spans = tuple(TextSpan(start, end, self.names.get(said, said)) for start, end, said in label.spans or ())
        return LabelledText(task.text or "", spans, language=task.language)

    def _add(self, **more: int) -> None:
        self.sum = replace(self.sum, **{name: getattr(self.sum, name) + count for name, count in more.items()})

    def _tell(self, errors: Mapping[int, Exception], aside: int) -> None:
        for task, error in sorted(errors.items()):
            _log.error(
                "label not scored",
                extra={"project": self.project.uid, "task": task, "reason": _reason(error), "stack": stack_of(error)},
            )
        if aside:
            _log.error("labels set aside", extra={"project": self.project.uid, "labels": aside})


def _reason(error: Exception) -> str:
    # Messages of this product carry no text of a task; others may.
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, BackendError | ConformalError) else name


def _reasons(errors: Mapping[int, Exception]) -> dict[int, BaseException | str]:
    return {task: _reason(error) for task, error in errors.items()}


@lru_cache(maxsize=64)
def class_names(label_config: str | None, classes: tuple[str, ...]) -> Mapping[str, str]:
    """Return the class that each label of a label config stands for; labels that stand for none are missing.

    >>> class_names('<View><Labels name="l" toName="t"><Label value="Person"/><Label value="Dog"/></Labels>'
    ...             '<Text name="t" value="$text"/></View>', ("PER", "LOC"))
    {'Person': 'PER'}
    """
    try:
        controls = () if label_config is None else parse_config(label_config).controls
    except InvalidLabelConfig:
        controls = ()
    names: dict[str, str] = {}
    for control in controls:
        for name, label in match_labels(control.options, classes).items():
            names.setdefault(label, name)
    return names


def write_rows(
    session: Session,
    *,
    project: ProjectRecord,
    model: ModelRecord,
    tagger: Tagger,
    pairs: Sequence[Scored],
    units: Sequence[Sequence[UnitRow]],
) -> int:
    """Make scored labels calibration rows and end the attempts at them; returns how many rows are new."""
    # Read under the lock that changes of the history take: nothing is decided by a history that is out of date.
    lock_project(session, project.id, shared=True)
    history = load_history(session, project.id)
    numbers = [task.id for (_, task), _ in pairs]
    lock_tasks(session, numbers)
    trained = training_tasks(session, tagger.base_hash, numbers, ancestors=tagger.ancestors)
    drawn = load_tasks(session, numbers)
    led, blank = prelabelled(session, numbers), shown_blank(session, numbers)
    written = 0
    for ((label, task), item), rows in zip(pairs, units, strict=True):
        task = drawn[task.id]  # noqa: PLW2901 - its draw may have come since it was read
        try:
            written += record_units(
                session,
                project.id,
                model_id=model.id,
                task_id=task.id,
                label_revision=label.revision,
                units=rows,
                evidence=label_evidence(label, task, led=led.get(task.id), blank=blank.get(task.id)),
                exclusion=label_exclusion(label, task, history, trained=task.id in trained),
                weight=1.0 if task.draw is None else 1.0 / task.draw.selection_probability,
                errors=error_row(item),
            )
        except StoreConflict:
            continue  # the label changed since it was read; the next call scores it as it is then
    end_attempts(session, numbers, model_id=model.id)
    return written
