"""A campaign through a real Label Studio and the same one through `surespan simulate` come to the same.

Both have the same people, who label the same tasks in the same order. Compared are what their editor showed (prelabels
and flags), the labels, the thresholds after every step, the decisions about acceptance and what was accepted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from backend.acceptance.decision import Wish
from backend.acceptance.server import best_prediction
from backend.calibration.schedule import count_rows, last_fit
from backend.domain.records import TextSpan, VersionRecord
from backend.labelstudio.client import Json
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.prediction.calibration import calibration_of
from backend.settings import Settings, load_settings
from backend.simulation.annotators import Habits, Shown
from backend.simulation.campaign import Played, Rules, play_on
from backend.simulation.desk import label_config
from backend.simulation.loop import running
from backend.simulation.policies import Policy
from backend.simulation.project import Corpus, PlayedProject, regions, spans_of
from backend.store import Store
from backend.store.calibration import load_cells
from backend.store.projects import find_project
from backend.store.state import SALT, get_state
from backend.store.tables import AcceptedTask, Label, Task
from backend.tagger.readers import LabelledText, read_labelled
from tests.support.commands import surespan_json
from tests.support.data import require_benchmark_data
from tests.support.end_to_end import ProjectFactory, ServiceFactory
from tests.support.label_studio import Project, Service
from tests.support.waiting import wait_for
from tests.support.workers import scored_tasks

LABELS = ("LOC", "MISC", "ORG", "PER")
EVERY = 20  # labels between two refits, and of a step, so that both loops refit on the same ones
EVIDENCE = 126  # blind labels that come first: one more than the first decision takes
PATIENCE = 600.0
REPLAYED = Policy("replayed", "", learns=False, accepts=True)
_PLACES = ("Berlin", "Paris", "London", "Madrid", "Rome")
_PEOPLE = ("John", "Mary", "Ann", "Peter", "Kolo")


def easy_texts(count: int) -> list[LabelledText]:
    """Texts that the model gets right but for some whose truth is another than it looks."""
    made = []
    for i in range(count):
        place, person = _PLACES[i % 5], _PEOPLE[(i // 5) % 5]
        text = f"{person} was in {place} on day {i} , as everybody had expected ."
        start = text.index(place)
        spans = (TextSpan(0, len(person), "PER"), TextSpan(start, start + len(place), "LOC"))
        made.append(LabelledText(text, spans[:1] if i % 29 == 3 else spans))
    return made


class Watched(PlayedProject):
    """A project whose campaign is written down: what was shown, and the thresholds after each step."""

    def __init__(self, project: PlayedProject) -> None:
        vars(self).update(vars(project))  # the same project in all that is asked of the database
        self.showing: dict[int, Shown] = {}
        self.thresholds: list[dict[str, Any]] = []
        self._watched = project

    def show(self, numbers: Sequence[int]) -> dict[int, Shown]:
        shown = self._watched.show(numbers)
        self.showing |= shown
        return shown

    def submit(self, labels: Mapping[int, tuple[Sequence[TextSpan], float]]) -> None:
        self._watched.submit(labels)
        version = self.version()
        if version is not None:
            self.thresholds.append(describe(version))

    def publish(self) -> None:
        self._watched.publish()

    def accept(self, wish: Wish) -> Json:
        return self._watched.accept(wish)

    def accepted(self) -> dict[int, tuple[TextSpan, ...]]:
        return self._watched.accepted()


class RealProject(PlayedProject):
    """A project of a real Label Studio that a real service works for."""

    def __init__(
        self, settings: Settings, store: Store, corpus: Corpus, *, work: Project, service: Service, loader: ModelLoader
    ) -> None:
        with store.read() as session:
            project = find_project(session, work.uid)
        assert project is not None
        super().__init__(
            settings, store, corpus, project=project, config=label_config(LABELS), loader=loader,
            views=Views(settings, store, loader, poll=0.0),
        )  # fmt: skip
        self._work, self._service = work, service
        self._labelled: set[str] = set()

    def show(self, numbers: Sequence[int]) -> dict[int, Shown]:
        version = self.view().model_version
        results = {}
        for number in numbers:
            best = best_prediction(self._work.server.task(number), version)
            assert best is not None, f"task {number} lacks the prediction of {version}"
            results[number] = best["result"]
        return self._shown(results)

    def submit(self, labels: Mapping[int, tuple[Sequence[TextSpan], float]]) -> None:
        for number, (spans, seconds) in labels.items():
            text = self.corpus.texts[number].text
            self._work.server.annotate(number, regions(text, spans), lead_time=seconds)
        self._labelled |= {str(number) for number in labels}
        wait_for(self._is_settled, "labels are scored and thresholds fitted", seconds=PATIENCE)
        self._service.wait_for_jobs(self._work)

    def publish(self) -> None:
        self._service.wait_for_jobs(self._work)  # the worker does it by itself

    def accept(self, wish: Wish) -> Json:
        asked = ("accept", "--project", str(self._work.id), "--max-error", wish.max_error)
        said = surespan_json(self._service, *asked)
        self._service.wait_for_jobs(self._work)
        return dict(said["job"])

    def accepted(self) -> dict[int, tuple[TextSpan, ...]]:
        tasks = self._work.server.call("GET", "/api/tasks/", project=self._work.id, page_size=1000, fields="all")
        return {
            int(task["id"]): spans_of(each["result"])
            for task in tasks["tasks"]
            for each in task["annotations"]
            if each["parent_prediction"] is not None
        }

    def _is_settled(self) -> bool:
        if not self._labelled <= scored_tasks(self.store):
            return False
        model, _ = self._context.model_of(self.project)
        with self.store.read() as session:
            rows = count_rows(load_cells(session, self.project.id, model_id=model.id))
            return rows - last_fit(session, self.project.id, model_id=model.id).rows < EVERY


def describe(version: VersionRecord) -> dict[str, Any]:
    """Return all figures of a version by name, but for what the order of its rows in the database decides.

    That is the bound that is shown beside a level of flags: betting takes rows one after the other.
    """
    thresholds = calibration_of(version).thresholds
    figures: dict[str, Any] = {"guarantee": version.guarantee, "labels": version.n}
    for cell, scores in thresholds.cells.items():
        figures |= {f"{cell} {place}": score for place, score in enumerate(scores.tolist())}
        figures[f"{cell} tau"] = thresholds.threshold(cell, version.alpha)
    figures |= {f"label {name}": thresholds.label_threshold(name, version.alpha) for name in thresholds.labels}
    for pool in (version.details.get("risk") or {}).get("pools", ()):
        figures |= {f"flags {pool['name']} {name}": pool[name] for name in ("level", "n", "calibrated", "risk")}
    return figures


def agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether figures are the same; the last digits of a network's depend on what is computed beside a text."""
    return one.keys() == other.keys() and all(
        math.isclose(value, other[name], rel_tol=1e-4, abs_tol=1e-6)
        if isinstance(value, float) and isinstance(other[name], float)
        else value == other[name]
        for name, value in one.items()
    )


def stored(store: Store, project_id: int) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the labels of tasks as the database has them, and the tasks that were accepted."""
    with store.read() as session:
        labels = session.execute(
            sa.select(Task.external_id, Label.spans, Label.exclusion)
            .join(Label, Label.task_id == Task.id)
            .where(Task.project_id == project_id)
        )
        accepted = session.execute(
            sa.select(Task.external_id, AcceptedTask.state)
            .join(AcceptedTask, AcceptedTask.task_id == Task.id)
            .where(Task.project_id == project_id)
            .order_by(Task.external_id)
        )
        return {name: (spans, exclusion) for name, spans, exclusion in labels}, [tuple(row) for row in accepted]


def decisions(project: PlayedProject) -> list[dict[str, Any]]:
    names = ("number", "promise", "max_error", "labels", "level", "below", "bound", "lost", "why")
    return [{name: getattr(each, name) for name in names} for each in project.decisions()]


def replay_order(project: PlayedProject, seed: int) -> list[int]:
    """Return an order in which the evidence that a decision takes comes first, with few other tasks between it."""
    rng = np.random.default_rng(seed)
    with project.store.read() as session:
        rows = session.execute(sa.select(Task.external_id, Task.blind).where(Task.project_id == project.project.id))
        drawn = {int(name): bool(blind) for name, blind in rows}
    assert drawn.keys() == project.corpus.texts.keys()
    blind = [number for number in rng.permutation(sorted(drawn)).tolist() if drawn[number]]
    others = [number for number in rng.permutation(sorted(drawn)).tolist() if not drawn[number]]
    assert len(blind) >= EVIDENCE
    assert len(others) >= 40
    # Whole steps: both loops refit after the same labels.
    few = -EVIDENCE % EVERY + EVERY
    first = [*blind[:EVIDENCE], *others[:few]]
    rest = [*blind[EVIDENCE:], *others[few:]]
    return [*rng.permutation(first).tolist(), *rng.permutation(rest).tolist()]


def compare(
    texts: list[LabelledText],
    *,
    blind: float,
    start_service: ServiceFactory,
    make_project: ProjectFactory,
    loader: ModelLoader,
    tmp_path: Path,
) -> Played:
    """Play the campaign on both, and return it where they agree."""
    chosen = {"blind": blind, "audit_share": blind, "max_error": "0.1", "n_min": 40, "refit_every_labels": EVERY}
    variables = {f"SURESPAN_{name.upper()}": str(value) for name, value in chosen.items()}
    service = start_service(**variables, SURESPAN_AT_WORK_MINUTES="0", SURESPAN_SYNC_EVERY_MINUTES="0")
    work = make_project((), label_config=label_config(LABELS), title="Replayed")
    numbers = [
        number for first in range(0, len(texts), 100) for number in work.add(t.text for t in texts[first : first + 100])
    ]
    service.connect(work)
    rules = Rules("0.1", habits=Habits(accuracy=0.9, stamping=0.2), blind=blind, step=EVERY)
    with service.open_store() as store:
        with store.read() as session:
            known = find_project(session, work.uid)
            assert known is not None
            salt = str((get_state(session, known.id, SALT) or {})["salt"])
        corpus = Corpus(dict(zip(numbers, texts, strict=True)), LABELS, salt=salt, uid=work.uid)
        settings = load_settings(database_url=service.database_url, at_work_minutes=0, **chosen)
        real = Watched(RealProject(settings, store, corpus, work=work, service=service, loader=loader))
        order = replay_order(real, seed=5)
        begun = time.monotonic()
        played = play_on(real, corpus, REPLAYED, rules, seed=5, order=order)
        print(f"\nLabel Studio: {time.monotonic() - begun:.0f} s", flush=True)
        begun = time.monotonic()
        chosen_too = load_settings(learn="off", **chosen)
        with running(chosen_too, corpus, order=REPLAYED.order, loader=loader, directory=tmp_path) as loop:
            simulated = Watched(loop)
            again = play_on(simulated, corpus, REPLAYED, rules, seed=5, order=order)
            print(f"simulate: {time.monotonic() - begun:.0f} s", flush=True)
            assert simulated.showing == real.showing
            assert len(simulated.thresholds) == len(real.thresholds)
            for step, (one, other) in enumerate(zip(simulated.thresholds, real.thresholds, strict=True)):
                different = {name: (one.get(name), other.get(name)) for name in one.keys() | other.keys()}
                different = {name: pair for name, pair in different.items() if pair[0] != pair[1]}
                assert agree(one, other), f"thresholds after step {step}: {sorted(different.items())[:20]}"
            for one, other in zip(decisions(simulated), decisions(real), strict=True):
                assert agree(one, other), f"decisions: {one}, {other}"
            assert simulated.accepted() == real.accepted()
            assert stored(simulated.store, simulated.project.id) == stored(store, known.id)
            flags = sum(bool(each.amber) for each in real.showing.values())
            print(
                f"{len(texts)} tasks: {len(real.showing)} shown, {flags} with amber places, "
                f"{len(set(map(str, real.thresholds)))} thresholds, decisions {decisions(real)}, "
                f"{len(real.accepted())} accepted, work {played.share:.1%}, errors {played.end.loss:.2%}: the same",
                flush=True,
            )
    assert again.points == played.points
    return played


@pytest.fixture(scope="module")
def bundled() -> ModelLoader:
    made = ModelLoader(load_settings())
    made.start()
    made.tagger(300.0)
    return made


def test_simulate_and_the_real_loop_agree(
    start_service: ServiceFactory, make_project: ProjectFactory, bundled: ModelLoader, tmp_path: Path
) -> None:
    played = compare(
        easy_texts(185), blind=0.75, start_service=start_service, make_project=make_project, loader=bundled,
        tmp_path=tmp_path,
    )  # fmt: skip
    assert len(played.decisions) == 1


@pytest.mark.slow
def test_they_agree_on_three_hundred_real_sentences(
    start_service: ServiceFactory,
    make_project: ProjectFactory,
    bundled: ModelLoader,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = read_labelled(require_benchmark_data() / "wikineural" / "es.test.conllu.gz").texts
    chosen = [
        LabelledText(texts[i].text, texts[i].spans) for i in np.random.default_rng(0).permutation(len(texts))[:300]
    ]
    with capsys.disabled():
        played = compare(
            chosen, blind=0.5, start_service=start_service, make_project=make_project, loader=bundled,
            tmp_path=tmp_path,
        )  # fmt: skip
    assert len(played.decisions) == 1
