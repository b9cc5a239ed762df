"""A project that a campaign is played on, whoever serves it: what it says about its tasks, and what is asked of it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import conformal
from backend.acceptance.decision import Standing, Wish, stand
from backend.domain.guarantee import Guarantee
from backend.domain.records import AcceptanceRecord, ProjectRecord, TaskRecord, TextSpan, VersionRecord
from backend.jobs.context import WorkContext, no_heartbeat
from backend.labelstudio.client import Json
from backend.models.loading import ModelLoader
from backend.models.views import View, Views
from backend.review.queue import review_queue
from backend.settings import Settings
from backend.simulation.annotators import Shown
from backend.simulation.desk import FLAG
from backend.store import Store
from backend.store.acceptance import count_blind_labels, list_acceptances
from backend.store.project_models import list_models
from backend.store.projects import find_task, lookup_model
from backend.store.queue import QueuedTask
from backend.store.thresholds import active_version
from backend.tagger.blank import BlankTagger
from backend.tagger.readers import LabelledText
from backend.tagger.spans import to_char_spans

UID = "1.1790000000"
_TOGETHER = 200
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """The tasks of a project by their numbers, the labels of its config, and under which name and salt it is drawn."""

    texts: Mapping[int, LabelledText]
    labels: tuple[str, ...]
    salt: str
    uid: str = UID


class PlayedProject(ABC):
    """What a campaign asks of a project. `show`, `submit`, `publish`, `accept` and `accepted` are the server's part."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        corpus: Corpus,
        *,
        project: ProjectRecord,
        config: str,
        loader: ModelLoader,
        views: Views,
    ) -> None:
        self.store, self.corpus, self.project = store, corpus, project
        self._settings, self._config, self._views = settings, config, views
        self._context = WorkContext(
            settings=settings,
            store=store,
            loader=loader,
            views=views,
            label_studio=lambda: None,
            heartbeat=no_heartbeat,
            log=_log,
        )

    @abstractmethod
    def show(self, numbers: Sequence[int]) -> dict[int, Shown]:
        """Have tasks predicted, drawn and recorded under what serves now, and return what their editor shows."""

    @abstractmethod
    def submit(self, labels: Mapping[int, tuple[Sequence[TextSpan], float]]) -> None:
        """Have labels come in with the seconds they took, and wait until nothing is due."""

    @abstractmethod
    def publish(self) -> None:
        """Bring every task without a label up to date, as after each new version."""

    @abstractmethod
    def accept(self, wish: Wish) -> Json:
        """Ask for a decision and have it acted on; returns what the job says."""

    @abstractmethod
    def accepted(self) -> dict[int, tuple[TextSpan, ...]]:
        """Return the tasks that are accepted now, with their labels."""

    def view(self) -> View:
        """Return what serves now."""
        return self._views.view(self.corpus.uid, self._config)

    def queue(self, limit: int, *, evidence_first: bool = False) -> list[QueuedTask]:
        """Return what to look at next."""
        model = self._context.model_of(self.project)[0]
        with self.store.read() as session:
            return review_queue(
                session,
                self.project.id,
                model_id=model.id,
                settings=self._settings,
                limit=limit,
                evidence_first=evidence_first,
            )

    def guesses(self, numbers: Sequence[int]) -> dict[int, tuple[TextSpan, ...]]:
        """Return the best labelings of tasks under the model that serves; nothing where none knows their labels."""
        view = self.view()
        if view.target.blank:
            return dict.fromkeys(numbers, ())
        tagger, names, found = view.predictor.tagger, view.target.labels, {}
        for begin in range(0, len(numbers), _TOGETHER):
            page = numbers[begin : begin + _TOGETHER]
            texts = [self.corpus.texts[number] for number in page]
            tagged = tagger.potentials([each.text for each in texts], languages=[each.language for each in texts])
            for number, one in zip(page, tagged, strict=True):
                spans = tagger.space.spans(conformal.kbest(one.potentials, 1).labels[0]) if one.tokens else []
                named = (span._replace(label=names[span.label]) for span in to_char_spans(spans, one.tokens))
                found[number] = tuple(named)
        return found

    def standing(self, wish: Wish) -> Standing | None:
        """Say where a wish stands; None while no model knows the project's labels."""
        model, tagger = self._context.model_of(self.project)
        if isinstance(tagger, BlankTagger):
            return None
        with self.store.read() as session:
            labels = count_blind_labels(session, self.project.id, model_id=model.id)
            return stand(list_acceptances(session, self.project.id), wish, model_id=model.id, labels=labels)

    def decisions(self) -> list[AcceptanceRecord]:
        """Return the decisions about acceptance so far."""
        with self.store.read() as session:
            return list_acceptances(session, self.project.id)

    def trained(self) -> int:
        """Return how many models of the project's own have served."""
        with self.store.read() as session:
            return sum(model.promoted_at is not None for model in list_models(session, self.project.id))

    def version(self) -> VersionRecord | None:
        """Return the thresholds that serve, None for the starter's."""
        header = self.view().model
        with self.store.read() as session:
            model = lookup_model(session, header.name, header.hash)
            return None if model is None else active_version(session, self.project.id, model_id=model.id)

    def _shown(self, results: Mapping[int, Sequence[Json]]) -> dict[int, Shown]:
        """Return what the editor shows of tasks whose best prediction has these regions."""
        view = self.view()
        with self.store.read() as session:
            tasks = {number: find_task(session, self.project.id, external_id=str(number)) for number in results}
        return {number: _shown(view, tasks[number], result) for number, result in results.items()}


def regions(text: str, spans: Sequence[TextSpan]) -> list[Json]:
    """Return spans as the regions of an annotation."""
    return [
        {
            "id": f"r{place}",
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {"start": start, "end": end, "text": text[start:end], "labels": [label]},
        }
        for place, (start, end, label) in enumerate(spans)
    ]


def spans_of(result: Sequence[Json]) -> tuple[TextSpan, ...]:
    """Return the spans of a prediction's or an annotation's regions; marks of doubt are none."""
    return tuple(
        TextSpan(each["value"]["start"], each["value"]["end"], each["value"]["labels"][0])
        for each in result
        if each["from_name"] == "label"
    )


def _shown(view: View, task: TaskRecord | None, result: Sequence[Json]) -> Shown:
    if task is None or task.draw is None or task.draw.blind or view.target.blank:
        return Shown()
    flags = view.predictor.calibration.flags_for(task.language or "")
    amber = tuple(
        (each["value"]["start"], each["value"]["end"]) for each in result if each["value"]["labels"] == [FLAG]
    )
    # What is amber by a borrowed level, or by none, promises nothing about the rest of the project's own texts.
    whole = flags is None or flags.level == 0 or flags.guarantee is not Guarantee.OWN
    return Shown(prelabelled=True, spans=spans_of(result), amber=amber, whole=whole)
