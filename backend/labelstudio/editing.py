"""Changes to a project's own texts: the flag control in its label config, our paragraph in its instruction.

Everything else stays as its authors wrote it, to the character: the XML is changed at two places and not written anew.
"""

from __future__ import annotations

import difflib
import re
from xml.parsers import expat

from backend.domain.target import Target
from backend.errors import InvalidLabelConfig
from backend.labelstudio.config import parse_config

FLAG_LABEL = "Needs review"
AMBER = "#FFA000"


def add_flag(xml: str, target: Target) -> str:
    """Return the label config with a control for doubtful spans and labels shown in the text.

    What is there already is left alone, so a second call changes nothing. The control comes after the one that
    predictions fill, so that the keys of its labels stay what they were.

    Raises:
        InvalidLabelConfig: when the places for it cannot be found.

    >>> xml = '<View><Labels name="l" toName="t"><Label value="PER"/></Labels><Text name="t" value="$text"/></View>'
    >>> print(add_flag(xml, parse_config(xml).target(["PER"])))
    <View><Labels name="l" toName="t"><Label value="PER"/></Labels>
    <Labels name="flag" toName="t">
      <Label value="Needs review" background="#FFA000"/>
    </Labels><Text showLabels="true" name="t" value="$text"/></View>
    """
    offsets = _find(xml, target)
    source = xml.encode()
    edits: list[tuple[int, bytes]] = []
    if not offsets.shows_labels:
        edits.append((offsets.text_tag, b' showLabels="true"'))
    if target.flag is None:
        name = next(each for each in ("flag", "surespan-flag", "surespan-flag-2") if each not in offsets.names)
        margin = re.search(rb"[ \t]*$", source[: offsets.labels_start])
        indent = (margin.group() if margin else b"").decode()
        control = (
            f'\n{indent}<{offsets.tag} name="{name}" toName="{target.text.name}">'
            f'\n{indent}  <Label value="{FLAG_LABEL}" background="{AMBER}"/>'
            f"\n{indent}</{offsets.tag}>"
        )
        edits.append((offsets.labels_end, control.encode()))
    for offset, piece in sorted(edits, reverse=True):
        source = source[:offset] + piece + source[offset:]
    return source.decode()


def show_difference(before: str, after: str) -> str:
    """Return the change as a unified diff; empty when there is none.

    >>> print(show_difference("<View>", "<View >"))
    --- label config now
    +++ label config with flags
    @@ -1 +1 @@
    -<View>
    +<View >
    """
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "label config now", "label config with flags", lineterm="", n=2
    )
    return "\n".join(lines)


def with_paragraph(instruction: str, paragraph: str, *, earlier: str | None = None) -> str:
    r"""Return the instruction with our paragraph at its end, in place of an earlier version of it.

    >>> with_paragraph("<p>Be careful.</p>", "<p>Blank.</p>")
    '<p>Be careful.</p>\n<p>Blank.</p>'
    >>> with_paragraph("<p>Old.</p>", "<p>New.</p>", earlier="<p>Old.</p>")
    '<p>New.</p>'
    """
    if paragraph in instruction:
        return instruction
    rest = without_paragraph(instruction, earlier) if earlier else instruction
    return f"{rest}\n{paragraph}" if rest.strip() else paragraph


def without_paragraph(instruction: str, paragraph: str) -> str:
    r"""Return the instruction without our paragraph; anything else in it stays.

    >>> without_paragraph("<p>Be careful.</p>\n<p>Blank.</p>", "<p>Blank.</p>")
    '<p>Be careful.</p>'
    """
    for piece in (f"\n{paragraph}", paragraph):
        if piece in instruction:
            return instruction.replace(piece, "", 1)
    return instruction


class _Offsets:
    """Where things are in the bytes of a label config."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.labels_start = self.labels_end = self.text_tag = -1
        self.shows_labels = False
        self.tag = ""  # of the control that predictions fill


def _find(xml: str, target: Target) -> _Offsets:
    parse_config(xml)  # refuses DTD and entities before expat sees them
    offsets = _Offsets()
    source = xml.encode()
    parser = expat.ParserCreate("utf-8")
    open_tags: list[bool] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        name = attributes.get("name", "")
        offsets.names.add(name)
        chosen = tag.lower() == target.kind and name == target.control and offsets.labels_start < 0
        if chosen:
            offsets.labels_start, offsets.tag = parser.CurrentByteIndex, tag
        open_tags.append(chosen)
        if tag.lower() == target.text.shape and name == target.text.name and offsets.text_tag < 0:
            offsets.text_tag = parser.CurrentByteIndex + 1 + len(tag.encode())
            # Whatever its author says about labels in the text, on or off, stays.
            offsets.shows_labels = any(key.lower() == "showlabels" for key in attributes)

    def end(_tag: str) -> None:
        if open_tags.pop():
            offsets.labels_end = source.index(b">", parser.CurrentByteIndex) + 1

    parser.StartElementHandler, parser.EndElementHandler = start, end
    try:
        parser.Parse(source, True)
    except expat.ExpatError:
        raise InvalidLabelConfig("expected well-formed XML in UTF-8, got something else") from None
    if min(offsets.labels_start, offsets.labels_end, offsets.text_tag) < 0:
        raise InvalidLabelConfig(f"expected the controls {target.control!r} and {target.text.name!r}, got others")
    return offsets
