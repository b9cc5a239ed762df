"""What a process needs to predict as another one does: where the model is, and the thresholds themselves.

It is sent to processes and machines that may see neither the database nor the settings of the one that sends it, so it
holds no address and no secret. The model is not sent but loaded where it is used, and must have the expected hash; a
project's own goes along, because others cannot ask the database for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from backend.domain.units import TASK
from backend.labelstudio.config import parse_config
from backend.models.packing import unpack
from backend.prediction.answer import Answer, answer_of
from backend.prediction.calibration import Calibration
from backend.prediction.predictor import Predictor
from backend.tagger.errors import InvalidModel
from backend.tagger.identity import Origin
from backend.tagger.loading import load_tagger
from backend.tagger.options import TaggerOptions
from backend.tagger.project_classes import project_tagger
from backend.tagger.whole import WholeTexts
from conformal import warm_up

_log = logging.getLogger(__name__)


class Item(NamedTuple):
    """A text to predict; the log knows it by `task`."""

    task: str
    text: str
    language: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A predictor as it can be sent."""

    origin: Origin
    label_config: str
    control: str | None
    calibration: Calibration
    model_version: str
    alpha: str
    max_shown: int
    max_sequences: int
    device: str = "auto"
    threads: int | None = None
    packed: bytes | None = None

    def predictor(self) -> Predictor:
        """Load the model and return the predictor.

        Raises:
            InvalidModel: when it is not there, or what is there is another one.
        """
        origin = self.origin
        options = TaggerOptions(
            mapping=None if origin.model_map is None else Path(origin.model_map),
            threads=self.threads,
            int8=origin.int8,
            device=self.device,
        )
        with self._source() as source:
            tagger = load_tagger(source, options=options)
        if origin.unit == TASK:
            tagger = WholeTexts(tagger)
        if tagger.hash != origin.hash:
            raise InvalidModel(
                f"expected the model {origin.source} to have the hash {origin.hash[:8]}, got {tagger.hash[:8]}: put "
                "the same model on every machine"
            )
        target = parse_config(self.label_config).target(tagger.space.classes, control=self.control)
        warm_up()
        return Predictor(
            project_tagger(tagger, target),
            self.calibration,
            alpha=self.alpha,
            max_shown=self.max_shown,
            max_sequences=self.max_sequences,
        )

    @contextmanager
    def _source(self) -> Iterator[str]:
        if self.packed is None:
            yield self.origin.source
            return
        with TemporaryDirectory() as directory:
            unpack(self.packed, Path(directory))
            yield directory


def recipe_of(
    predictor: Predictor,
    *,
    origin: Origin,
    label_config: str,
    control: str | None,
    device: str = "auto",
    threads: int | None = None,
    packed: bytes | None = None,
) -> Recipe:
    """Return the recipe of a predictor whose model came from `origin`, or is `packed`."""
    return Recipe(
        origin=origin,
        label_config=label_config,
        control=control,
        calibration=predictor.calibration,
        model_version=predictor.model_version,
        alpha=predictor.alpha,
        max_shown=predictor.max_shown,
        max_sequences=predictor.max_sequences,
        device=device,
        threads=threads,
        packed=packed,
    )


def predict_items(predictor: Predictor, items: Sequence[Item]) -> list[Answer | None]:
    """Return the answer of each text, in order; None for one that cannot be predicted, which no other suffers from."""
    if not items:
        return []
    try:
        predictions = predictor.predict([item.text for item in items], languages=[item.language for item in items])
        return [answer_of(each) for each in predictions]
    except Exception as error:  # noqa: BLE001 - one bad text must not cost the others their predictions
        if len(items) == 1:
            _log.warning("a text has no prediction", extra={"task": items[0].task, "error": type(error).__name__})
            return [None]
    middle = len(items) // 2
    return predict_items(predictor, items[:middle]) + predict_items(predictor, items[middle:])
