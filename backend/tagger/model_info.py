"""What a network of hashed words says about itself: the header of its file. Free of torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from backend.tagger.errors import InvalidModel
from backend.tagger.features import FeatureConfig
from backend.tagger.saved_file import FORMAT, FORMAT_VERSION
from conformal.labels import LabelSpace

TABLES = ("words", "prefixes", "suffixes", "shapes", "ngrams")  # stored in int8, with one scale a row
CHAIN = ("transitions", "start", "end")  # stored in float32; layers are stored in float16
SEEN = "seen"  # fingerprints of the training texts


@dataclass(frozen=True)
class NetworkConfig:
    """Widths of the layers; part of a saved model."""

    word_width: int = 64
    affix_width: int = 40
    shape_width: int = 24
    ngram_width: int = 64
    mixed_width: int = 192
    hidden: int = 160
    layers: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or not 1 <= value <= 4096:
                raise InvalidModel(f"expected {name} to be a whole number in 1..4096, got {value!r}")


@dataclass(frozen=True)
class ModelInfo:
    """What a saved model says about itself; `hash` is filled in by saving and checked by loading."""

    name: str
    classes: tuple[str, ...]
    languages: tuple[str, ...]
    features: FeatureConfig
    network: NetworkConfig
    training: Mapping[str, Any] = field(default_factory=dict)
    hash: str = ""

    @property
    def space(self) -> LabelSpace:
        """The label space."""
        return LabelSpace(self.classes)

    @property
    def ancestors(self) -> tuple[str, ...]:
        """Hashes of the models whose weights this one was begun with, oldest first: what they learnt is in it."""
        said = self.training.get("ancestors")
        # Models of earlier releases name the last one only.
        last = self.training.get("start")
        return tuple(str(each) for each in said) if isinstance(said, list) else ((str(last),) if last else ())

    def to_json(self) -> str:
        """Everything but the hash, in a fixed order."""
        fields = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "classes": list(self.classes),
            "languages": list(self.languages),
            "features": asdict(self.features),
            "network": asdict(self.network),
            "training": dict(self.training),
        }
        return json.dumps(fields, ensure_ascii=False, sort_keys=True)


def parse_info(header: str, name: str) -> ModelInfo:
    """Read what `ModelInfo.to_json` wrote into the file `name`; raises InvalidModel."""
    try:
        fields = json.loads(header)
        if fields.get("kind", "network") != "network":
            raise InvalidModel(f"expected a model of hashed words in {name}, got one of the kind {fields['kind']!r}")
        format_read = (fields["format"], fields["format_version"])
        if format_read != (FORMAT, FORMAT_VERSION):
            raise InvalidModel(
                f"expected format {FORMAT} version {FORMAT_VERSION} in {name}, got {format_read[0]} {format_read[1]}; "
                "use the release that wrote it, or train again"
            )
        sizes = dict(fields["features"])
        sizes["ngram_lengths"] = tuple(sizes["ngram_lengths"])
        return ModelInfo(
            name=str(fields["name"]),
            classes=tuple(fields["classes"]),
            languages=tuple(fields["languages"]),
            features=FeatureConfig(**sizes),
            network=NetworkConfig(**fields["network"]),
            training=fields["training"],
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidModel(f"expected a Surespan model description in {name}, got {error!r}") from None
