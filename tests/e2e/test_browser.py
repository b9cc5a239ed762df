"""An annotator's afternoon in a real browser, and what the database says about it afterwards.

The fixture `afternoon` does it all once, because a browser is slow; the tests look at one side of it each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from backend.domain.records import LabelRecord, TextSpan
from backend.store import Store
from backend.store.labels import label_history, list_labels
from backend.store.projects import find_project
from backend.store.rows import StoredRow, live_rows
from backend.store.tables import CalibrationCell, CalibrationScore, Task
from tests.support.editor import Editor
from tests.support.label_studio import LabelStudioServer, Project, Service
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from tests.support.end_to_end import ProjectFactory, ServiceFactory

KEYS = {"PER": "1", "ORG": "2", "LOC": "3", "MISC": "4"}
REFIT_AFTER = 12
# Names that are people, places and companies; the bundled model is in doubt about most of them.
NAMES = ("Jordan", "Washington", "Florence", "Chelsea", "Austin", "Victoria", "Lincoln", "Sydney")
TEXTS = [
    text.format(name)
    for name in NAMES
    for text in (
        "{} visited Paris with Alice Cooper.",
        "{} wins in Madrid.",
        "The people of {} met Sony in Tokyo.",
        "{} and Amazon sign a deal.",
    )
]
ENTITIES = {"Paris": "LOC", "Alice Cooper": "PER", "Madrid": "LOC", "Sony": "ORG", "Tokyo": "LOC", "Amazon": "ORG"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """What was done to a task, and what must be known about it."""

    spans: tuple[TextSpan, ...] | None
    annotation: int
    parent: int | None = None
    origins: Mapping[str, int] = field(default_factory=dict)
    exclusion: str | None = None
    changes: int = 1


@dataclass
class Afternoon:
    """The project and all that was done, by task."""

    project: Project
    surespan: Service
    blind: set[int]
    first_version: str
    done: dict[int, Done] = field(default_factory=dict)
    retired: int = 0

    def text(self, task: int) -> str:
        """The text of a task."""
        return TEXTS[self.project.tasks.index(task)]


def spans_of(prediction: Json) -> tuple[TextSpan, ...]:
    """The entities of a prediction; a mark of doubt is none."""
    values = [region["value"] for region in prediction["result"] if region["from_name"] == "label"]
    return tuple(sorted(TextSpan(value["start"], value["end"], value["labels"][0]) for value in values))


def flagged_in(prediction: Json) -> list[TextSpan]:
    """The entities of a prediction that are marked as doubtful."""
    marked = {region["id"] for region in prediction["result"] if region["from_name"] == "flag"}
    own = [region for region in prediction["result"] if region["from_name"] == "label" and region["id"] in marked]
    return [TextSpan(r["value"]["start"], r["value"]["end"], r["value"]["labels"][0]) for r in own]


class Annotator:
    """Chooses tasks, works on them in the browser, and writes down what the database must say."""

    def __init__(self, editor: Editor, story: Afternoon) -> None:
        self.editor, self.story = editor, story
        self.server = story.project.server
        self._untouched = [task for task in story.project.tasks if task not in story.blind]

    def predictions(self, task: int) -> list[Json]:
        """The predictions of a task, best first."""
        found: list[Json] = self.server.task(task)["predictions"]
        return sorted(found, key=lambda each: -each["id"])

    def take_doubtful(self) -> int:
        """A task that was not touched, has further labelings and an amber span in the best one."""
        for task in self._untouched:
            ranked = self.predictions(task)
            if len(ranked) > 1 and flagged_in(ranked[0]):
                self._untouched.remove(task)
                return task
        raise AssertionError("no doubtful task is left: choose other texts")

    def take_shown(self, words: str = "") -> int:
        """Any task that was not touched, has a prelabel with an entity, and these words in its text."""
        candidates = (task for task in self._untouched if words in self.story.text(task))
        task = next(task for task in candidates if spans_of(self.predictions(task)[0]))
        self._untouched.remove(task)
        return task

    def see_prelabel(self, task: int) -> Json:
        """Make sure that the task shows its best labeling, doubtful spans in amber; return that prediction."""
        best = self.predictions(task)[0]
        shown = self.editor.shown()
        values = {(r["value"]["start"], r["value"]["end"]) for r in best["result"]}
        assert {span[:2] for span in shown} == values
        amber = {(r["value"]["start"], r["value"]["end"]) for r in best["result"] if r["from_name"] == "flag"}
        assert {span[:2] for span in shown if span.amber} == amber
        return best

    def see_tabs(self, number: int) -> list[str]:
        """Make sure that there are so many tabs, and return their names."""
        wait_for(lambda: len(self.editor.tabs()) == number, f"{number} tabs are shown")
        return self.editor.tabs()

    def alternative(self) -> None:
        """Quick view: prefer the second labeling, duplicate it, submit."""
        task = self.take_doubtful()
        first, second, *_ = self.predictions(task)
        self.editor.open_task(task)
        self.see_prelabel(task)
        tabs = self.see_tabs(1 + len(self.predictions(task)))
        assert [name.partition(" ")[2] for name in tabs[1:3]] == ["", "#2"]
        self.editor.choose_tab(2)
        assert {span[:2] for span in self.editor.shown() if not span.amber} <= {span[:2] for span in spans_of(second)}
        self.editor.duplicate(2)
        made = self.editor.submit()
        assert spans_of(first) != spans_of(second)
        origins = {"prediction": len(spans_of(second))} if spans_of(second) else {}
        self.story.done[task] = Done(spans_of(second), made["id"], parent=second["id"], origins=origins)

    def accept_in_stream(self) -> None:
        """Label stream: submit what is shown."""
        task = self.editor.label_all()
        best = self.see_prelabel(task)
        assert task not in self.story.blind or not best["result"]
        made = self.editor.submit()
        assert made["task"] == task
        self._forget(task)
        self.story.done[task] = self._accepted(best, made)

    def skip_in_stream(self) -> None:
        """Label stream: skip. The prelabel is sent along, and says nothing."""
        task = self.editor.label_all()
        best = self.see_prelabel(task)
        made = self.editor.skip()
        assert (made["task"], made["was_cancelled"]) == (task, True)
        self._forget(task)
        self.story.done[task] = replace(self._accepted(best, made), spans=None, exclusion="skipped")

    def correct(self) -> int:
        """Quick view: give the amber span another class by its key, submit."""
        task = self.take_doubtful()
        self.editor.open_task(task)
        best = self.see_prelabel(task)
        doubtful = flagged_in(best)[0]
        wanted = "ORG" if doubtful.label != "ORG" else "PER"
        self._relabel(doubtful, wanted)
        made = self.editor.submit()
        spans = tuple(sorted({*spans_of(best)} - {doubtful} | {doubtful._replace(label=wanted)}))
        origins = {"prediction-changed": 1, "prediction": len(spans) - 1}
        self.story.done[task] = Done(
            spans, made["id"], parent=best["id"], origins={name: n for name, n in origins.items() if n}
        )
        return task

    def edit(self, task: int) -> None:
        """Quick view: change the class of a submitted annotation's span again, update."""
        before = self.story.done[task]
        assert before.spans
        span = before.spans[0]
        wanted = "MISC" if span.label != "MISC" else "PER"
        self.editor.open_task(task)
        self._relabel(span, wanted)
        made = self.editor.update()
        assert made["id"] == before.annotation
        spans = tuple(sorted({*before.spans} - {span} | {span._replace(label=wanted)}))
        regions = [region for region in made["result"] if region["from_name"] == "label"]
        origins: dict[str, int] = {}
        for region in regions:
            origins[region["origin"]] = origins.get(region["origin"], 0) + 1
        self.story.done[task] = replace(before, spans=spans, origins=origins, changes=2)
        self.story.retired += 1

    def empty(self) -> None:
        """Quick view: remove every region, submit: the text has no entity."""
        task = self.take_shown("wins")  # few words, so that the labeling without entities is among the best 1000
        self.editor.open_task(task)
        best = self.see_prelabel(task)
        for span in self.editor.shown():
            self.editor.select(span)
            self.editor.press("Backspace")
        assert self.editor.shown() == []
        made = self.editor.submit()
        assert made["result"] == []
        self.story.done[task] = Done((), made["id"], parent=best["id"])

    def blind(self) -> None:
        """Quick view: a blank task has nothing filled in and no other labelings; draw its names, submit."""
        task = min(self.story.blind - set(self.story.done))
        self.editor.open_task(task)
        assert self.editor.shown() == []
        self.see_tabs(2)  # the annotation, and the empty prediction that keeps its place
        text = self.story.text(task)
        name = next(name for name in NAMES if name in text)
        drawn = {name: "LOC"} | {words: label for words, label in ENTITIES.items() if words in text}
        for words, label in drawn.items():
            self.editor.draw(words, key=KEYS[label])
        made = self.editor.submit()
        places = ((text.index(words), label, len(words)) for words, label in drawn.items())
        spans = tuple(sorted(TextSpan(start, start + length, label) for start, label, length in places))
        (only,) = self.predictions(task)
        self.story.done[task] = Done(spans, made["id"], parent=only["id"], origins={"manual": len(spans)})

    def delete(self) -> None:
        """Quick view: submit what is shown, then delete the annotation."""
        task = self.take_shown()
        self.editor.open_task(task)
        best = self.see_prelabel(task)
        made = self.editor.submit()
        self.wait_for_row(task)
        self.editor.delete()
        self.story.done[task] = replace(self._accepted(best, made), spans=None, exclusion="withdrawn", changes=2)
        self.story.retired += 1

    def fill(self, rows: int) -> None:
        """Over the API, to save time: accept prelabels until there are so many labels that count."""
        while sum(each.exclusion is None for each in self.story.done.values()) < rows:
            task = self.take_shown()
            best = self.predictions(task)[0]
            made = self.server.annotate(task, best["result"], parent_prediction=best["id"])
            origins = {"unknown": len(spans_of(best))}  # the editor names an origin, a script does not
            self.story.done[task] = replace(self._accepted(best, made), origins=origins)

    def superseded(self) -> None:
        """Open a task; a refit replaces its prediction while it is open; submit what was shown."""
        task = self.take_shown()
        self.editor.open_task(task)
        best = self.see_prelabel(task)
        self.fill(REFIT_AFTER)
        new = self.wait_for_version()
        now = self.predictions(task)
        assert now[0]["model_version"] == new
        # Label Studio refuses an annotation that names a prediction which is gone, so what may be open is kept.
        assert best["id"] in {each["id"] for each in now}
        made = self.editor.submit()
        assert made["parent_prediction"] == best["id"]
        self.story.done[task] = self._accepted(best, made)

    def wait_for_version(self) -> str:
        """Wait until the project serves another version than at the beginning; return it."""
        wait_for(
            lambda: self.story.project.details["model_version"] != self.story.first_version,
            "a refit changed the version",
        )
        self.story.surespan.wait_for_jobs(self.story.project)
        return str(self.story.project.details["model_version"])

    def wait_for_row(self, task: int) -> None:
        """Wait until the label of a task was scored."""
        wait_for(lambda: task in rows_of(self.story), f"task {task} has a calibration row")

    def _accepted(self, best: Json, made: Json) -> Done:
        spans = spans_of(best)
        return Done(spans, made["id"], parent=best["id"], origins={"prediction": len(spans)} if spans else {})

    def _relabel(self, span: TextSpan, label: str) -> None:
        (found,) = [each for each in self.editor.shown() if each[:2] == span[:2]]
        self.editor.select(found)
        self.editor.press(KEYS[label])
        self.editor.press("Escape")

    def _forget(self, task: int) -> None:
        if task in self._untouched:
            self._untouched.remove(task)


@pytest.fixture(scope="module")
def afternoon(start_service: ServiceFactory, make_project: ProjectFactory, context: BrowserContext) -> Afternoon:
    surespan = start_service(
        SURESPAN_ALPHA="0.1",
        SURESPAN_BLIND="0.25",
        SURESPAN_N_MIN="9",
        SURESPAN_REFIT_EVERY_LABELS=str(REFIT_AFTER),
        SURESPAN_REFIT_EVERY_MINUTES="600",
    )
    work = make_project(TEXTS, title="An afternoon")
    version = surespan.connect(work)["model_version"]
    with surespan.open_store() as store, store.read() as session:
        blind = session.execute(sa.select(Task.external_id).where(Task.blind.is_(True))).scalars()
        story = Afternoon(work, surespan, {int(task) for task in blind}, version)
    with closing(context.new_page()) as page:
        annotator = Annotator(Editor(page, work), story)
        annotator.alternative()
        annotator.accept_in_stream()
        corrected = annotator.correct()
        annotator.skip_in_stream()
        annotator.empty()
        annotator.blind()
        annotator.wait_for_row(corrected)
        annotator.edit(corrected)
        annotator.delete()
        annotator.superseded()
    counted = {task for task, each in story.done.items() if each.exclusion is None}
    wait_for(lambda: set(rows_of(story)) == counted, "every label that counts has a row, and no other has one")
    surespan.wait_for_jobs(work)
    return story


@pytest.fixture(scope="module")
def store(afternoon: Afternoon) -> Iterator[Store]:
    with afternoon.surespan.open_store() as opened:
        yield opened


def labels_of(story: Afternoon, store: Store) -> dict[int, LabelRecord]:
    """The labels by task number."""
    with store.read() as session:
        project = find_project(session, story.project.uid)
        assert project is not None
        numbers = dict(session.execute(sa.select(Task.id, Task.external_id)).all())  # type: ignore[arg-type]
        return {int(numbers[label.task_id]): label for label in list_labels(session, project.id)}


def rows_of(story: Afternoon) -> dict[int, StoredRow]:
    """The live calibration rows by task number."""
    with story.surespan.open_store() as store, store.read() as session:
        project = find_project(session, story.project.uid)
        assert project is not None
        models = session.execute(sa.select(CalibrationCell.model_id).distinct()).scalars().all()
        numbers = dict(session.execute(sa.select(Task.id, Task.external_id)).all())  # type: ignore[arg-type]
        return {
            int(numbers[row.task_id]): row for model in models for row in live_rows(session, project.id, model_id=model)
        }


def test_labels_are_what_was_submitted(afternoon: Afternoon, store: Store) -> None:
    labels = labels_of(afternoon, store)
    found = {task: (label.spans, label.exclusion) for task, label in labels.items()}
    assert found == {task: (done.spans, done.exclusion) for task, done in afternoon.done.items()}
    assert len(found) == REFIT_AFTER + 3  # those that count: one after the refit; and a skipped and a deleted one


def test_provenance_says_where_each_label_comes_from(afternoon: Afternoon, store: Store) -> None:
    labels = labels_of(afternoon, store)
    for task, done in afternoon.done.items():
        made = labels[task].annotation
        if done.exclusion == "withdrawn":
            assert made is None
            continue
        assert made is not None
        assert (made.annotation_id, made.parent_prediction) == (done.annotation, done.parent), f"task {task}"
        assert dict(made.origins) == dict(done.origins), f"task {task}"
        assert made.was_cancelled == (done.exclusion == "skipped")
        assert not made.bulk


def test_history_keeps_what_was_changed_and_deleted(afternoon: Afternoon, store: Store) -> None:
    labels = labels_of(afternoon, store)
    with store.read() as session:
        for task, done in afternoon.done.items():
            history = label_history(session, labels[task].task_id)
            assert len(history) == done.changes, f"task {task}"
            assert {number for _, _, number, _ in history} == {done.annotation}


def test_calibration_rows_hold_the_scores_of_the_labels(afternoon: Afternoon, store: Store) -> None:
    from backend.tagger.loading import load_tagger  # noqa: PLC0415 - torch is needed here only
    from conformal import kbest  # noqa: PLC0415
    from conformal.scores import DEFAULT_LIMIT  # noqa: PLC0415

    tagger = load_tagger()
    rows = rows_of(afternoon)
    labels = labels_of(afternoon, store)
    assert set(rows) == {task for task, done in afternoon.done.items() if done.exclusion is None}
    for task, row in rows.items():
        text = afternoon.text(task)
        (tagged,) = tagger.potentials([text])
        best = kbest(tagged.potentials, DEFAULT_LIMIT)
        tokens = tagged.tokens
        ranked = [
            tuple(TextSpan(tokens[s.start].start, tokens[s.end - 1].end, s.label) for s in tagger.space.spans(labeling))
            for labeling in best.labels
        ]
        label = tuple(afternoon.done[task].spans or ())
        if label not in ranked:  # which task is submitted empty is drawn by lot, and some have names all over
            assert (row.scores.rank, row.scores.cumulative) == (math.inf, math.inf), text
            assert row.scores.nll > -best.log_probabilities[-1], text
            continue
        place = ranked.index(label)
        assert row.scores.rank == place + 1, text
        assert row.scores.nll == pytest.approx(-best.log_probabilities[place], rel=1e-6, abs=1e-9)
        summed = math.fsum(math.exp(each) for each in best.log_probabilities[: place + 1])
        assert row.scores.cumulative == pytest.approx(summed, rel=1e-6)
        assert row.scores.entities == len(afternoon.done[task].spans or ())
        assert row.evidence == ("blind" if task in afternoon.blind else "assisted")
        assert (row.exclusion, row.weight, row.label_revision) == ("", 1.0, labels[task].revision)
        length = "1-10" if len(tokens) <= 10 else "11-20"
        assert row.stratum == f"{tagged.language}/{length}"


def test_rows_of_changed_labels_were_retired(afternoon: Afternoon, store: Store) -> None:
    with store.read() as session:
        retired = session.execute(
            sa.select(sa.func.count()).where(CalibrationScore.removed_at_revision.is_not(None))
        ).scalar_one()
    assert retired == afternoon.retired


def test_the_refit_changed_the_version_and_the_next_task_shows_it(
    afternoon: Afternoon, context: BrowserContext, label_studio: LabelStudioServer
) -> None:
    work, surespan = afternoon.project, afternoon.surespan
    version = str(work.details["model_version"])
    assert version != afternoon.first_version
    assert version.partition("+cal.")[0] == afternoon.first_version.partition("+cal.")[0]
    (backend,) = label_studio.call("GET", "/api/ml/", project=work.id)
    assert backend["title"] == version

    thresholds = surespan.call("GET", f"/api/v1/projects/{work.uid}/thresholds")
    assert thresholds["threshold_version"] == int(version.partition("+cal.")[2])
    assert thresholds["n"] == REFIT_AFTER

    with closing(context.new_page()) as page:
        editor = Editor(page, work)
        while (task := editor.label_all()) in afternoon.blind:
            editor.submit()
        stored = label_studio.task(task)["predictions"]
        best = max(stored, key=lambda each: int(each["id"]))
        assert best["model_version"] == version
        assert {span[:2] for span in editor.shown()} == {
            (r["value"]["start"], r["value"]["end"]) for r in best["result"]
        }
        for meta in (region["meta"] for region in best["result"] if "meta" in region):
            assert (meta["threshold_version"], meta["guarantee"]) == (thresholds["threshold_version"], "assisted")
        editor.open_task(task)
        assert editor.tabs()[1].endswith(version[-6:])
