"""A file of texts to a file of Label Studio tasks with predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from backend import __version__
from backend.calibration.local import stored_calibration
from backend.calibration.local_predictor import starter_of
from backend.domain.label_names import listed_names
from backend.domain.target import Target
from backend.errors import InvalidInput, InvalidLabelConfig
from backend.labelstudio.config import parse_config
from backend.labelstudio.render import render, render_empty
from backend.models.loading import ModelLoader
from backend.preannotate.engine import Engine
from backend.preannotate.journal import Journal
from backend.preannotate.recipe import Item, recipe_of
from backend.preannotate.texts import Format, Source, digest_of, read_texts
from backend.prediction.answer import Answer
from backend.prediction.predictor import Predictor
from backend.settings import Settings
from backend.store.projects import LOCAL
from backend.tagger.configured import load_configured
from backend.tagger.project_classes import project_tagger

FLAG = "Needs review"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Wanted:
    """What is asked for: from where to where, in which form, for which label config (None: one made of the classes)."""

    source: Path
    output: Path
    form: Format
    label_config: str | None = None
    language: str | None = None
    batch: int = 500


@dataclass
class FileReport:
    """What was written. `resumed` were there from an earlier run, `blank` have no prediction."""

    output: str
    tasks: int
    resumed: int
    blank: int
    model_version: str
    guarantee: str
    labels: tuple[str, ...]
    complete: bool = True


def preannotate_file(settings: Settings, wanted: Wanted, *, engine: Engine, progress: Progress) -> FileReport:
    """Write a task with predictions for each text of a file, in order; goes on where an earlier run was ended.

    Raises:
        InvalidInput: when the input cannot be read or the output belongs to something else.
        InvalidLabelConfig: when the label config has no place for any class of the model.
    """
    tagger = load_configured(settings)
    config = wanted.label_config or config_of(tagger.space.classes)
    target = parse_config(config).target(tagger.space.classes, control=settings.labels_control)
    if target.blank:
        raise InvalidLabelConfig(
            f"expected a label config with a label for a class of the model ({', '.join(tagger.space.classes)}), got "
            f"the labels: {listed_names(target.unknown) or 'none'}; name a class in predicted_values of a label, or "
            "train a model for these labels (`surespan train`)"
        )
    seen = project_tagger(tagger, target)
    predictor = Predictor(
        seen,
        stored_calibration(settings, seen) or starter_of(settings, seen),
        alpha=settings.alpha,
        max_shown=settings.max_shown,
        max_sequences=settings.max_sequences,
    )
    about = {
        "input": digest_of(wanted.source),
        "format": wanted.form.value,
        "language": wanted.language,
        "model version": predictor.model_version,
        "label config": target.digest,
        "alpha": settings.alpha,
        "flags": None if settings.risk_rule is None else [settings.max_error, settings.max_error_sure],
        "most shown": settings.max_shown,
        "most sequences": settings.max_sequences,
        "longest text": settings.max_text,
        "surespan": __version__,
    }

    def read() -> Iterator[Source]:
        return read_texts(wanted.source, wanted.form, tag=target.text, language=wanted.language)

    total = sum(1 for _ in read())  # every line is looked at before the first is predicted
    if not total:
        raise InvalidInput(f"{wanted.source.name}: expected texts, got none")
    header = ModelLoader(settings).header()
    assert header.origin is not None  # noqa: S101 - a loader always says where its model came from
    recipe = recipe_of(
        predictor,
        origin=header.origin,
        label_config=config,
        control=settings.labels_control,
        device=settings.device,
        threads=settings.torch_threads,
    )
    with Journal(wanted.output, about).open() as journal:
        report = FileReport(
            str(wanted.output),
            total,
            journal.done,
            0,
            predictor.model_version,
            predictor.calibration.guarantee.value,
            seen.space.classes,
        )
        progress(journal.done, total)
        if journal.complete:
            return report
        kept: list[list[Source]] = []  # groups that were handed to the engine and have not come back
        groups = _groups(islice(read(), journal.done, None), wanted.batch, kept, longest=settings.max_text)
        for answers in engine.run(recipe, groups, own=predictor):
            sources = kept.pop(0)
            lines = _lines(sources, answers, target=target, version=predictor.model_version, longest=settings.max_text)
            report.blank += len(sources) - sum(each is not None for each in answers)
            journal.append(lines)
            progress(journal.done, total)
        journal.finish()
    return report


def _groups(
    sources: Iterator[Source], size: int, kept: list[list[Source]], *, longest: int
) -> Iterator[Sequence[Item]]:
    while group := list(islice(sources, size)):
        kept.append(group)
        shown = ((each, each.within(longest)) for each in group)
        yield [Item(each.name, document.text, each.language) for each, document in shown if document is not None]


def _lines(
    sources: Sequence[Source], answers: Sequence[Answer | None], *, target: Target, version: str, longest: int
) -> list[dict[str, Any]]:
    predicted = iter(answers)
    lines: list[dict[str, Any]] = []
    for source in sources:
        document = source.within(longest)
        answer = None if document is None else next(predicted)
        predictions = (
            render_empty(version)
            if answer is None or document is None
            else render(answer, document, target=target, project=LOCAL, task=source.name)
        )
        lines.append({"data": dict(source.data), "predictions": predictions})
    return lines


def config_of(classes: Sequence[str]) -> str:
    """Return a label config with these classes, and the control that marks doubtful spans.

    >>> print(config_of(["PER"]))
    <View>
      <Labels name="label" toName="text">
        <Label value="PER"/>
      </Labels>
      <Labels name="flag" toName="text">
        <Label value="Needs review" background="#ffb000"/>
      </Labels>
      <Text name="text" value="$text" showLabels="true"/>
    </View>
    """
    labels = "\n".join(f"    <Label value={quoteattr(name)}/>" for name in classes)
    return (
        f'<View>\n  <Labels name="label" toName="text">\n{labels}\n  </Labels>\n'
        f'  <Labels name="flag" toName="text">\n    <Label value="{FLAG}" background="#ffb000"/>\n  </Labels>\n'
        '  <Text name="text" value="$text" showLabels="true"/>\n</View>'
    )
