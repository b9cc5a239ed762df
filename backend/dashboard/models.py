"""The panel of a project's models, and what is asked before another one serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flask import url_for
from sqlalchemy.orm import Session

from backend.calibration.promotion import PROMOTED, promote
from backend.dashboard.figures import Figure, Link, columns
from backend.dashboard.subject import Subject
from backend.domain.label_names import listed_names
from backend.domain.project_model import ProjectModel, State
from backend.errors import InvalidLabelConfig, NotFound
from backend.labels.label_sets import noted_labels
from backend.labels.training_sets import ClassNames
from backend.labelstudio.config import parse_config
from backend.learning.report import describe_learning, learning_report
from backend.models.report import LICENCE, SHOWN, licence_of
from backend.store.project_models import kept_files, list_models, match_model
from backend.tagger.model_files import BUNDLED


def models(subject: Subject) -> Figure:
    """Show the models of a project."""
    session, project = subject.session, subject.project
    found = list_models(session, project.id, limit=SHOWN)
    files = kept_files(session, [each.model_hash for each in found])
    return Figure(
        "models",
        "Models of this project",
        "What was trained on this project's labels, the newest first. One serves; going back to another takes effect "
        "at once, and its thresholds, sets and flags come back with it.",
        columns(
            "Model",
            "State",
            "Classes",
            "Labels",
            "Started from",
            "Figures",
            "Asked by",
            "Made",
            "Served from",
            "Retired",
            "Why",
            "Licence",
            count=[3],
            time=[7, 8, 9],
            code=[0],
        ),
        tuple(
            (
                each.version,
                each.state.value,
                ", ".join(each.classes),
                each.labels,
                each.base if len(each.base) < _HASH else each.base[:8],
                _figures(each) or None,
                each.asked_by or None,
                each.created_at,
                each.promoted_at,
                each.retired_at,
                each.why or None,
                licence_of(each, found) or None,
            )
            for each in found
        ),
        f"This project has no model of its own: {_base(subject)} serves it.",
        links=tuple(_link(subject, each) if each.model_hash in files else None for each in found),
    )


def labels(subject: Subject) -> Figure:
    """Show which labels of a project its model knows, which wait for the next one, and which the config has lost."""
    project, settings = subject.project, subject.settings
    noted = {each.name: each for each in noted_labels(subject.session, project.id)}
    classes = () if subject.header is None or subject.blank else subject.header.classes
    try:
        target = parse_config(project.label_config or "").target(classes, control=settings.labels_control)
        names, waits = target.names, set(target.unknown)
    except InvalidLabelConfig:
        names, waits = (), set()
    gone = [each for name, each in noted.items() if name not in names]
    called = ClassNames(project)
    parts = {
        "Known to the model": [name for name in names if name not in waits],
        "Waiting for the next training": [name for name in names if name in waits],
        "No longer in the label config": [each.name for each in gone],
    }
    said = "; ".join(f"{part}: {listed_names(found)}" for part, found in parts.items() if found)
    return Figure(
        "labels",
        "Labels of this project",
        f"{said or 'No labels yet'}. When labels are added, renamed or removed in Label Studio, what people have "
        "labelled is kept and exported as it is; the next training has the labels that the label config has then.",
        columns("Label", "Now", "Since", time=[2]),
        (
            *(
                (name, _WAITS if name in waits else _KNOWN, noted[name].since if name in noted else None)
                for name in names
            ),
            *((each.name, _gone(called.of(each.name)), each.gone) for each in gone),
        ),
        "The label config has no labels over a text.",
    )


def _gone(called: str | None) -> str:
    return _GONE if called is None else f"now called {called}: what was labelled so is learnt from as that"


def promotion_question(subject: Subject, given: Mapping[str, str]) -> tuple[str, tuple[str, ...], str, dict[str, str]]:
    """Return title, explanation, button and fields of what is asked before a model serves.

    Raises:
        NotFound: when the project has no such model.
    """
    model = _chosen(subject.session, subject, given)
    licence = licence_of(model, list_models(subject.session, subject.project.id, limit=SHOWN))
    explanation = (
        (
            f"Model {model.version}, trained on {model.labels:,} labels for the classes {', '.join(model.classes)}, "
            "becomes the project's own; the one that serves now is kept, so that you can go back to it."
        ),
        (
            "If it has served before, its thresholds come back with it at once. Otherwise the labels are scored under "
            "it first, and its sets say none until enough labels that it did not learn from are there."
        ),
        "Predictions in Label Studio are refreshed afterwards; no label is lost.",
        *((f"This model {licence}.",) if licence else ()),
    )
    fields = {"model": model.model_hash}
    return f"Let model {model.version} serve {subject.name}?", explanation, f"Serve {model.version}", fields


def serve_model(session: Session, subject: Subject, *, given: Mapping[str, str], who: str) -> None:
    """Promote what a form names; it is recorded with that."""
    model = _chosen(session, subject, given)
    why = f"asked for by {who}"
    promote(session, subject.project, model.model_hash, settings=subject.settings, who=who, why=why)


def _chosen(session: Session, subject: Subject, given: Mapping[str, str]) -> ProjectModel:
    return match_model(session, subject.project.id, given.get("model", "")[:_HASH])


def _link(subject: Subject, model: ProjectModel) -> Link | None:
    if model.state is State.SERVING:
        return None
    text = "Roll back" if model.state is State.RETIRED else "Serve"
    href = url_for("dashboard.ask", uid=subject.project.uid, action=PROMOTED, model=model.model_hash)
    return Link(text, href, f"{text}: {model.version}")


def _figures(model: ProjectModel) -> str:
    numbers = {name: value for name, value in model.figures.items() if isinstance(value, int | float)}
    return ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())


def _base(subject: Subject) -> str:
    base = subject.settings.model or BUNDLED
    return f"the bundled model (it {LICENCE})" if base == BUNDLED else f"the model {base}"


def learning(subject: Subject) -> Figure:
    """Show how far a project is on the way to its next model."""
    report = learning_report(subject.session, subject.project, settings=subject.settings)
    job = report["training"] or {}
    return Figure(
        "learning",
        "The next model",
        f"{describe_learning(report)} Labels of audit tasks and of tasks drawn blind are never learnt from.",
        columns(
            "Labels to learn from", "Last at", "Next at", "Starts from", "Training", "Done", "Now", count=[0, 1, 2]
        ),
        (
            (
                report["labels"],
                report["last_at_labels"],
                report["next_at_labels"],
                report["start_from"],
                job.get("state"),
                f"{job['percent']} %" if job.get("state") == "running" else None,
                job.get("note") or None,
            ),
        ),
        "",
    )


def training_question(subject: Subject) -> tuple[str, tuple[str, ...], str, dict[str, str]]:
    """Return title, explanation, button and fields of what is asked before a model is trained.

    Raises:
        NotFound: where learning is switched off.
    """
    if subject.settings.learn == "off":
        raise NotFound("expected SURESPAN_LEARN to be auto or manual, got off: no model is trained here")
    report = learning_report(subject.session, subject.project, settings=subject.settings)
    explanation = (
        (
            f"A model is trained from the {report['labels']:,} labels that it may learn from, in the background; "
            "labels of audit tasks and of tasks drawn blind are left to calibration."
        ),
        (
            "It serves if it is better on labels held out for choosing and there are enough to calibrate it by; until "
            "then the model before it goes on."
        ),
    )
    licence = (f"It {LICENCE}; SURESPAN_LEARN_FROM=nothing does without.",) if report["start_from"] == BUNDLED else ()
    return f"Train a model for {subject.name} now?", (*explanation, *licence), "Train now", {}


_KNOWN = "known to the model: predicted"
_WAITS = "not known to the model: waits for the next training"
_GONE = "no longer in the label config: what was labelled so is kept and exported, and not learnt from until it is back"
_HASH = 64
MAKERS: dict[str, Callable[[Subject], Figure]] = {"labels": labels, "learning": learning, "models": models}
