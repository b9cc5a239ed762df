"""A project's label config: which control and text a prediction may name, and which label stands for a class.

The XML comes from outside, so it is read without DTD, entities or anything external. Label Studio refuses a whole
batch for one result that its config does not allow; therefore nothing is guessed here that the config does not say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from backend.domain.label_names import usable_names
from backend.domain.target import LABELS, Flag, Shape, Target, TextTag
from backend.errors import InvalidLabelConfig

MAX_CONFIG = 1_000_000  # characters; the largest of Label Studio's own templates has about 20,000

# The kinds of controls, by their tags in small letters, and what each may be over.
_KINDS = {
    LABELS: frozenset(Shape),
    "hypertextlabels": frozenset({Shape.PAGE}),
    "paragraphlabels": frozenset({Shape.DIALOGUE}),
}

_REVIEW = {"needs review", "review", "to review", "needs a review", "please review", "check", "doubtful", "flagged"}
_FLAG_NAMES = {"flag", "flags", "review", "needs review"}

# What people call the classes that nearly all models have. A label's own `predicted_values` come first.
_SYNONYMS = {
    "PER": {"person", "people", "persons"},
    "ORG": {"organization", "organisation", "organizations", "organisations", "company"},
    "LOC": {"location", "locations", "place", "places"},
    "GPE": {"geopolitical entity", "geo-political entity"},
    "EVT": {"event", "events"},
    "MISC": {"miscellaneous", "other"},
    "DATE": {"dates"},
}


@dataclass(frozen=True)
class Option:
    """A label that a control offers: what results carry, and the names by which a model may call it."""

    value: str
    predicted: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Control:
    """A `<Labels>`, `<ParagraphLabels>` or `<HyperTextLabels>` over one text."""

    name: str
    text: TextTag
    options: tuple[Option, ...]
    kind: str = LABELS


@dataclass(frozen=True)
class LabelConfig:
    """What a label config holds that matters here."""

    controls: tuple[Control, ...]
    digest: str

    def target(self, classes: Sequence[str], *, control: str | None = None) -> Target:
        """Return where predictions of these classes go: the control named, else the first that has one of them.

        Where no label stands for any class, it is the first control that people label with, and the target is blank:
        any label set is a project's own affair (METHODS 13.1).

        Raises:
            InvalidLabelConfig: when the control named is not there, or there is none over a text at all.
        """
        usable = self.controls if control is None else [each for each in self.controls if each.name == control]
        if control is not None and not usable:
            names = ", ".join(each.name for each in self.controls) or "none"
            raise InvalidLabelConfig(
                f"expected a Labels control over a text named {control!r} (SURESPAN_LABELS_CONTROL), got: {names}"
            )
        for each in usable:
            labels = match_labels(each.options, classes)
            if labels:
                return self._target(each, labels, classes)
        if not usable:
            raise InvalidLabelConfig(
                "expected a Labels control over a Text, Paragraphs or HyperText whose value is a key of the tasks "
                "($text), got a label config without one: add it in the project's labeling settings"
            )
        people = [each for each in usable if not _is_flag(each)] or usable
        return self._target(next((each for each in people if each.options), people[0]), {}, classes)

    def _target(self, chosen: Control, labels: dict[str, str], classes: Sequence[str]) -> Target:
        first: dict[str, str] = {}
        for name, label in labels.items():
            first.setdefault(label, name)
        merged = {name: first[label] for name, label in labels.items()}
        known = set(labels.values())
        unknown = usable_names(option.value for option in chosen.options if option.value not in known)
        return Target(
            chosen.name, chosen.text, labels, merged, self._flag(chosen, classes), self.digest, unknown, chosen.kind
        )

    def _flag(self, chosen: Control, classes: Sequence[str]) -> Flag | None:
        for each in self.controls:
            if each.name == chosen.name or each.text.name != chosen.text.name or match_labels(each.options, classes):
                continue
            for option in each.options:
                if _marks_doubt(each, option):
                    return Flag(each.name, option.value, each.kind)
        return None


def parse_config(xml: str) -> LabelConfig:
    """Read a label config.

    Raises:
        InvalidLabelConfig: when it is not well-formed XML, or carries a DTD or entities.

    >>> config = parse_config('<View><Labels name="l" toName="t"><Label value="Person"/></Labels>'
    ...                       '<Text name="t" value="$text"/></View>')
    >>> config.target(["PER", "LOC"]).labels
    {'PER': 'Person'}
    """
    if len(xml) > MAX_CONFIG:
        raise InvalidLabelConfig(f"expected a label config of at most {MAX_CONFIG} characters, got {len(xml)}")
    try:
        root = fromstring(xml, forbid_dtd=True)
    except DefusedXmlException:
        raise InvalidLabelConfig("expected a label config without DTD and entities, got one with them") from None
    except ParseError as error:
        line, column = error.position
        raise InvalidLabelConfig(f"expected well-formed XML, got an error at line {line}, column {column}") from None
    except (ValueError, LookupError):
        raise InvalidLabelConfig("expected well-formed XML, got characters that XML cannot hold") from None
    texts = {tag.name: tag for tag in map(_text_tag, _named(root, *Shape)) if tag is not None}
    controls = [
        Control(element.get("name", ""), texts[target], _options(element), kind)
        for element in _named(root, *_KINDS)
        for target in _targets(element)
        if target in texts and texts[target].shape in _KINDS[(kind := element.tag.lower())]
    ]
    # Those over a <Text> first, wherever they stand: they were all there was before dialogues and pages were read.
    controls.sort(key=lambda control: control.text.shape is not Shape.TEXT)
    digest = hashlib.sha256(xml.encode("utf-8", "surrogatepass")).hexdigest()
    return LabelConfig(tuple(controls), digest)


def match_labels(options: Iterable[Option], classes: Sequence[str]) -> dict[str, str]:
    """Return the label of each class that has one, in the order of the classes; case does not matter.

    What a label says in `predicted_values` wins over its value and alias, and these over the usual other names. Of
    labels that differ by case alone the one that is spelt like the class is meant.
    """
    offered = list(options)
    ways: tuple[Callable[[Option, str], bool], ...] = (_is_predicted, _is_spelt, _is_named, _is_called)
    matched: dict[str, str] = {}
    for name in classes:
        for way in ways:
            hit = next((option.value for option in offered if way(option, name)), None)
            if hit is not None:
                matched[name] = hit
                break
    return matched


def _is_predicted(option: Option, name: str) -> bool:
    return name.casefold() in {each.casefold() for each in option.predicted}


def _is_spelt(option: Option, name: str) -> bool:
    return name in option.names


def _is_named(option: Option, name: str) -> bool:
    return name.casefold() in {each.casefold() for each in option.names}


def _is_called(option: Option, name: str) -> bool:
    return any(_plain(each) in _SYNONYMS.get(name.upper(), ()) for each in option.names)


def _marks_doubt(control: Control, option: Option) -> bool:
    return _plain(option.value) in _REVIEW or (_plain(control.name) in _FLAG_NAMES and len(control.options) == 1)


def _is_flag(control: Control) -> bool:
    """Whether all that a control offers is to mark spans as doubtful."""
    return bool(control.options) and all(_marks_doubt(control, option) for option in control.options)


def _named(root: Element, *tags: str) -> Iterable[Element]:
    return (each for each in root.iter() if isinstance(each.tag, str) and each.tag.lower() in tags and each.get("name"))


def _text_tag(element: Element) -> TextTag | None:
    value = element.get("value", "")
    if not value.startswith("$") or len(value) < 2:
        return None  # a fixed text is the same in every task: nothing to predict
    said = {name.lower(): given for name, given in element.attrib.items()}
    shape, is_url = Shape(element.tag.lower()), said.get("valuetype", "").lower() == "url"
    if shape is not Shape.TEXT and is_url:
        return None  # positions in what a URL holds cannot be told from an annotation alone
    if said.get("encoding", "").lower() not in {"", "none"} or said.get("contextscroll", "false").lower() == "true":
        return None  # the editor shows something else than what the task holds, or in another order
    inline = said.get("inline", "false").lower() == "true"
    return TextTag(element.get("name", ""), value[1:], is_url, shape, said.get("textkey", "text"), inline)


def _targets(element: Element) -> list[str]:
    return [name.strip() for name in element.get("toName", "").split(",") if name.strip()]


def _options(element: Element) -> tuple[Option, ...]:
    options = []
    for label in element.iter():
        if not isinstance(label.tag, str) or label.tag.lower() != "label":
            continue
        # Results carry the alias where there is one.
        value = label.get("alias") or label.get("value")
        if value:
            raw = label.get("predicted_values") or label.get("predictedValues") or ""
            predicted = tuple(part.strip() for part in raw.split(",") if part.strip())
            names = tuple(name for name in (label.get("value"), label.get("alias")) if name)
            options.append(Option(value, predicted, names))
    return tuple(options)


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
