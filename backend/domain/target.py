"""Where the predictions of a project go: what its label config lets a model say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

LABELS = "labels"  # the kind of a `<Labels>` control, and of its results


class Shape(StrEnum):
    """What a task holds its text as: the tag of the label config that shows it, in small letters."""

    TEXT = "text"
    DIALOGUE = "paragraphs"
    PAGE = "hypertext"


@dataclass(frozen=True)
class TextTag:
    """What shows a text: its name, the key of the task's data it shows, and whether that holds a URL.

    `text_key` is where a turn of a dialogue has its text; an `inline` page is shown in Label Studio's own.
    """

    name: str
    key: str
    is_url: bool
    shape: Shape = Shape.TEXT
    text_key: str = "text"
    inline: bool = False


@dataclass(frozen=True)
class Flag:
    """The control that marks a span as doubtful, its label, and the kind of its results."""

    control: str
    value: str
    kind: str = LABELS


@dataclass(frozen=True)
class Target:
    """Where the predictions of a project go: what the config lets a model with given classes say.

    `labels` maps each class of the model that the config has to the label shown. `merged` maps it to the first class
    with the same label, so that labelings which look alike are one. `unknown` are the control's labels that stand for
    no class: nothing predicts them. Where no label is known the tasks come blank. `kind` is that of the control's
    results.
    """

    control: str
    text: TextTag
    labels: Mapping[str, str]
    merged: Mapping[str, str]
    flag: Flag | None
    digest: str
    unknown: tuple[str, ...] = ()
    kind: str = LABELS

    @property
    def blank(self) -> bool:
        """Whether the model knows no label of the project: its tasks come without a suggestion (METHODS 13.1)."""
        return not self.labels

    @property
    def names(self) -> tuple[str, ...]:
        """All labels of the control: those that stand for a class, then those that the model does not know."""
        return tuple(dict.fromkeys((*self.labels.values(), *self.unknown)))

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that stay distinct, in the model's order."""
        return tuple(name for name in self.labels if self.merged[name] == name)

    def class_of(self, label: str) -> str | None:
        """Return the class that a label of the control stands for."""
        return next((name for name in self.classes if self.labels[name] == label), None)
