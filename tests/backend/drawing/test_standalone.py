"""Drawings as files: well-formed, the same bytes again, names escaped, more lines than colours."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from backend.drawing.area import ROLES, Area
from backend.drawing.standalone import role_of, svg_file


def drawing() -> str:
    area = Area()
    area.line([(0.0, 10.0), (50.0, 20.0), (100.0, 0.0)], role_of(0), steps=True)
    area.dot(50.0, 20.0, role_of(8), title='a "name" <of> & more')
    area.dot(150.0, 20.0, role_of(0), title="beyond the area")
    legend = [(f"<group> {n}", role_of(n)) for n in range(9)]
    return svg_file(area, title="A & B", across="target", up="coverage", legend=legend)


def test_a_file_is_well_formed_and_the_same_again() -> None:
    text = drawing()
    assert text == drawing()
    root = ET.fromstring(text)  # noqa: S314 - our own
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ['a "name" <of> & more']
    shown = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert shown[0] == "A & B"
    assert [each for each in shown if each and each.startswith("<group>")] == [f"<group> {n}" for n in range(9)]


def test_lines_beyond_the_colours_look_different() -> None:
    looks = [role_of(number) for number in range(2 * len(ROLES))]
    assert len(set(looks)) == len(looks)
