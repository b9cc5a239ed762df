"""The panel of a project's models, and what is asked before another one serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flask import url_for
from sqlalchemy.orm import Session

from backend.calibration.promotion import PROMOTED, promote
from backend.dashboard.figures import Figure, Link, columns
from backend.dashboard.subject import Subject
from backend.domain.project_model import ProjectModel, State
from backend.errors import NotFound
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


_HASH = 64
MAKERS: dict[str, Callable[[Subject], Figure]] = {"learning": learning, "models": models}
