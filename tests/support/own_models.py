"""Models of projects: linear chains of a toy language, learnt in a moment, with label names of the test's choosing."""

from __future__ import annotations

from pathlib import Path

from backend.calibration.promotion import add_model, promote
from backend.domain.project_model import ProjectModel
from backend.domain.records import ProjectRecord, TextSpan
from backend.settings import Settings
from backend.store import Store
from backend.store.projects import ensure_project
from backend.tagger.linear.learning import learn
from backend.tagger.linear.saved import save_linear
from backend.tagger.readers import LabelledText
from tests.support.toy_texts import toy_texts


def config_of(*labels: str) -> str:
    """Return a label config with these labels."""
    return (
        '<View><Labels name="label" toName="text">'
        + "".join(f'<Label value="{label}"/>' for label in labels)
        + '</Labels><Text name="text" value="$text"/></View>'
    )


def learn_own(out: Path, *, names: tuple[str, str] = ("Drug", "Symptom"), seed: int = 1, name: str = "own") -> str:
    """Learn the toy language under other names for its two classes; return the model's hash."""
    renamed = dict(zip(("Drug", "Symptom"), names, strict=True))
    texts = [
        LabelledText(one.text, tuple(TextSpan(a, b, renamed[label]) for a, b, label in one.spans))
        for one in toy_texts(20, seed=seed)
    ]
    return save_linear(learn(texts), out, name=name, languages=["en"]).hash


def add_own(store: Store, settings: Settings, uid: str, directory: Path, *, config: str) -> ProjectModel:
    """Register a model of a project as a candidate."""
    with store.write() as session:
        project = ensure_project(session, uid, label_config=config)
        return add_model(
            session, project, directory, settings=settings, base="nothing", labels=20, trained_on={}, asked_by="ann"
        )


def promote_own(store: Store, settings: Settings, uid: str, digest: str) -> ProjectRecord:
    """Let a model of a project serve."""
    with store.write() as session:
        project = ensure_project(session, uid)
        promote(session, project, digest, settings=settings, who="ann", why="the first model")
    return project
