"""A whole run of the linear learner: what was gathered in, model directory out, a few lines on the terminal."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from backend.tagger.entity_f1 import entity_f1
from backend.tagger.errors import InvalidTraining
from backend.tagger.linear.course import Progress
from backend.tagger.linear.fitting import Recipe
from backend.tagger.linear.judging import Report
from backend.tagger.linear.learning import learn
from backend.tagger.linear.saved import LinearInfo, load_base, load_linear_tagger, save_linear
from backend.tagger.model_files import BUNDLED
from backend.tagger.training_data import Material
from backend.tagger.training_texts import fingerprints

NOTHING = "nothing"
MOST_TEXTS = 3_000  # it is ahead of the network at 1,000; where the network overtakes it is not known


def suits_linear(material: Material) -> bool:
    """Whether there are so few texts that the linear chain is the learner to take."""
    return len(material.train) + len(material.held) <= MOST_TEXTS


def train_linear(
    material: Material,
    out: Path,
    *,
    name: str = "model",
    start: str = BUNDLED,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
    console: Console | None = None,
) -> LinearInfo:
    """Learn from what was gathered and save it; return what the saved model says about itself.

    Texts held out by a share are learnt from as well: the learner holds out folds of its own. Development files of
    their own are only measured on. `start` is `bundled`, `nothing`, or the directory of a network whose knowledge to
    use. Raises InvalidTraining when there is nothing to learn from.
    """
    screen = console or Console(stderr=True)
    chosen = recipe or Recipe()
    own = bool(material.dev_share)
    texts = [*material.train, *material.held] if own or not material.train else material.train
    if not texts:
        raise InvalidTraining("expected labelled texts, got none; check the data files")
    base = None if start == NOTHING else load_base(start)
    languages = material.languages or (base.tagger.languages if base else ())
    learnt = learn(texts, base=base.tagger if base else None, languages=languages, recipe=chosen, progress=progress)
    _say_learnt(screen, learnt.report, bundled=base is not None and base.source == BUNDLED)
    summary: dict[str, Any] = {
        "files": material.files,
        "texts": learnt.report.texts,
        "repairs": material.repairs,
        "recipe": asdict(chosen),
        "start": base.tagger.hash if base and learnt.report.uses_base else "",
    }
    saved = save_linear(
        learnt,
        out,
        name=name,
        languages=languages,
        base=base,
        training=summary,
        seen=fingerprints(text.text for text in texts),
    )
    screen.print(f"saved {saved.name} ({saved.hash[:8]}): {_held(learnt.report)}", highlight=False)
    if not own and material.held:
        f1 = entity_f1(load_linear_tagger(out), material.held)
        screen.print(f"development F1 {f1:.4f} as stored", highlight=False)
    return saved


def _say_learnt(screen: Console, report: Report, *, bundled: bool) -> None:
    screen.print(
        f"learnt from {report.texts:,} texts ({report.sentences:,} sentences), {report.features:,} features",
        highlight=False,
    )
    for reason, count in report.left_out.items():
        screen.print(f"left out {count:,}: {reason}", highlight=False)
    if bundled and report.uses_base:
        screen.print(
            "uses the bundled network, whose licence is non-commercial (CC BY-NC-SA 4.0); with --start-from nothing it "
            "would not",
            highlight=False,
        )
    elif bundled:
        screen.print("the bundled network did not help on held-out labels and is not used", highlight=False)


def _held(report: Report) -> str:
    if report.held_f1 is None or report.held_loss is None:
        return "too few texts to hold any out, so nothing is known of its quality yet"
    return (
        f"on held-out labels F1 {report.held_f1:.4f}, log-loss {report.held_loss:.2f} a sentence, "
        f"temperature {report.temperature:.2f}"
    )
