"""The guarantee of a project in one sentence, its order of work, and the card of its model."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from backend.calibration.evidence import Evidence, count_evidence
from backend.calibration.order import describe_order
from backend.dashboard.subject import Subject, guarantee_word
from backend.domain.guarantee import Guarantee
from backend.prediction.remarks import describe_gap, describe_unknown, teach_labels
from backend.store.overview import brief_history
from backend.store.sampling import current_order
from backend.tagger.identity import origin_of
from conformal.scores import Method

_NOTHING = "Nothing to do."


@dataclass(frozen=True)
class State:
    """What may be promised now: a word for it, the sentence, and what to do next."""

    word: str
    sentence: str
    advice: str


def guarantee_state(subject: Subject) -> State:
    """Say what the sets of a project promise, or why they promise nothing yet."""
    unknown = describe_unknown(subject.unknown, blank=subject.blank)
    if subject.blank:
        return State("none", f"No promise, and no suggestion yet. {unknown}", teach_labels(subject.project.key))
    state = _promised(subject)
    if not unknown:
        return state
    advice = teach_labels(subject.project.key)
    if state.advice != _NOTHING:
        advice = f"{state.advice} {advice}"
    return State(state.word, f"{state.sentence} {unknown}", advice)


def _promised(subject: Subject) -> State:
    target = f"{(100 * (1 - Decimal(subject.alpha))).normalize():f} %"
    counts = count_evidence(subject.cells)
    clean = sum(n for kind, n in counts.items() if kind != Evidence.ASSISTED)
    missing = max(0, subject.settings.n_min - clean)
    version = subject.version
    if version is not None and Method(version.method).worth != "exact":
        return State(
            "none",
            f"No promise: the sets of the method {version.method} are {Method(version.method).worth}, and may hold the "
            f"right labeling in less than {target} of tasks.",
            "Set SURESPAN_METHOD to an exact one, for instance nc1, and refit.",
        )
    if version is None or version.guarantee == Guarantee.NONE:
        needed = f"Label {missing:,} more blank tasks" if missing else "Refit now"
        word = guarantee_word(version, method=subject.settings.method, starter=subject.starter)
        serving = (
            "thresholds are borrowed from the starter calibration of the model, which promises nothing for your texts"
            if word is Guarantee.BORROWED
            else "sets are left open"
        )
        return State(
            word.value,
            f"No promise yet: this project has too few labels of its own, so {serving}.",
            f"{needed} (or load a labelled file with `surespan calibrate`): then thresholds become your own.",
        )
    labels = int(version.details.get("rows") or version.n)
    sentence = (
        f"In at least {target} of tasks the right labeling is in the set, for tasks drawn at random from this "
        f"collection; thresholds rest on {labels:,} of your labels."
    )
    worth: dict[str, str] = version.details.get("guarantees", {})
    poor = sorted(pool for pool, what in worth.items() if what not in {Guarantee.OWN, Guarantee.ASSISTED})
    if poor:
        sentence += f" Not promised for {_listed(poor)}: too few labels there."
    if version.guarantee == Guarantee.ASSISTED:
        gap = describe_gap(version.details.get("gap") or {})
        return State(
            "assisted",
            f"Promised with a reservation. {sentence} The labels were made with a prelabel in view, which can make "
            f"thresholds too tight. {gap}",
            f"Label {missing:,} more blank tasks to make the guarantee your own." if missing else "Refit now.",
        )
    return State("own", f"The guarantee is your own. {sentence}", _NOTHING)


def order_sentence(subject: Subject) -> str:
    """Say in which order tasks are given out, and which labels count because of it."""
    order = current_order(subject.session, subject.project.id)
    info = describe_order(brief_history(subject.session, subject.project.id), order)
    return f"Order of tasks: {'unknown' if order is None else order.value}. Labels that may calibrate: {info.evidence}."


_PLACES = {"bundled": "the package (bundled)", "stored": "the database: a model of this project, see Models"}


def model_card(subject: Subject) -> list[tuple[str, str]]:
    """Return what the model is, in pairs of name and value."""
    header, settings, version = subject.header, subject.settings, subject.version
    if header is None:
        return [("Model", "still loading, or could not be loaded: see the service's log")]
    origin = header.origin or (None if subject.model is None else origin_of(subject.model.details))
    number = 0 if version is None else version.id
    card: list[tuple[str, Any]] = [
        ("Version shown in Label Studio", f"{header.version}+cal.{number}"),
        ("Model", header.name),
        ("Hash", header.hash),
        ("Classes", ", ".join(header.classes)),
        (
            "Loaded from",
            "" if origin is None else _PLACES.get(origin.source.partition(":")[0], origin.source),
        ),
        ("Method", settings.method if version is None else version.method),
        ("Alpha", subject.alpha),
        ("Labelings shown at most", settings.max_shown),
        ("Labels a stratum needs to stand alone", settings.n_min),
    ]
    if origin is not None and origin.source == "bundled":
        card.append(("Training data", "WikiNEuRal, nine languages; automatically tagged Wikipedia sentences"))
        card.append(("Licence of the weights", "CC BY-NC-SA 4.0: not for commercial use"))
    return [(name, str(value)) for name, value in card if value != ""]


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
