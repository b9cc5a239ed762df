from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.target import Flag
from backend.errors import InvalidLabelConfig
from backend.labelstudio.config import parse_config
from backend.labelstudio.editing import add_flag, show_difference, with_paragraph, without_paragraph

CLASSES = ["PER", "LOC"]
CONFIG = """<?xml version="1.0" encoding="UTF-8"?>
<!-- <Labels name="label"> in a comment, with ünïcode and a > -->
<View>
  <Header value="Who? → where"/>
  <Labels name="label" toName="text">
    <Label value="PER" hint="a > b"/>
    <Label value="LOC"/>
  </Labels>
  <Text name="text" value="$text" granularity="word"/>
</View>
"""


def test_the_flag_control_is_added_at_two_places_and_nothing_else_changes() -> None:
    target = parse_config(CONFIG).target(CLASSES)
    after = add_flag(CONFIG, target)
    control = (
        '\n  <Labels name="flag" toName="text">\n    <Label value="Needs review" background="#FFA000"/>\n  </Labels>'
    )
    assert after.replace(' showLabels="true"', "").replace(control, "") == CONFIG
    flagged = parse_config(after).target(CLASSES)
    assert flagged.flag is not None
    assert (flagged.flag.control, flagged.flag.value) == ("flag", "Needs review")
    assert (flagged.control, flagged.labels) == (target.control, target.labels)
    assert add_flag(after, flagged) == after
    assert show_difference(CONFIG, after).count("\n+") == 5  # the file's name, four lines
    assert show_difference(after, after) == ""


def test_what_the_author_says_about_labels_in_the_text_stays() -> None:
    quiet = CONFIG.replace('granularity="word"', 'showLabels="false"')
    after = add_flag(quiet, parse_config(quiet).target(CLASSES))
    assert 'showLabels="false"' in after
    assert 'showLabels="true"' not in after


def test_a_name_that_is_taken_is_not_used_again() -> None:
    taken = CONFIG.replace("<Header ", '<Choices name="flag" toName="text"><Choice value="x"/></Choices><Header ')
    after = add_flag(taken, parse_config(taken).target(CLASSES))
    assert '<Labels name="surespan-flag" toName="text">' in after


def test_two_texts_get_the_flag_where_the_predictions_go() -> None:
    two = CONFIG.replace("</View>", '<Labels name="b" toName="other"><Label value="ORG"/></Labels>'
                         '<Text name="other" value="$other"/></View>')  # fmt: skip
    after = add_flag(two, parse_config(two).target(["ORG"]))
    assert '<Labels name="flag" toName="other">' in after
    assert '<Text showLabels="true" name="other"' in after


def test_a_config_with_a_dtd_is_refused_before_it_is_read() -> None:
    target = parse_config(CONFIG).target(CLASSES)
    with pytest.raises(InvalidLabelConfig, match="without DTD"):
        add_flag("<!DOCTYPE x [<!ENTITY a 'b'>]><View/>", target)


@given(st.text(alphabet="<p>a\n é", max_size=40))
def test_a_paragraph_goes_in_once_and_comes_out_whole(instruction: str) -> None:
    ours = "<p class='surespan'>Blank tasks are meant.</p>"
    with_it = with_paragraph(instruction, ours)
    assert with_paragraph(with_it, ours) == with_it
    assert with_it.endswith(ours)
    assert without_paragraph(with_it, ours).strip() == instruction.strip()


def test_a_newer_paragraph_takes_the_place_of_the_older() -> None:
    assert with_paragraph("<p>Theirs.</p>\n<p>Old.</p>", "<p>New.</p>", earlier="<p>Old.</p>") == (
        "<p>Theirs.</p>\n<p>New.</p>"
    )


@pytest.mark.parametrize(("kind", "tag"), [("ParagraphLabels", "Paragraphs"), ("HyperTextLabels", "HyperText")])
def test_the_flag_of_a_dialogue_or_page_is_a_control_of_its_kind(kind: str, tag: str) -> None:
    xml = f'<View><{kind} name="l" toName="t"><Label value="PER"/></{kind}><{tag} name="t" value="$x"/></View>'
    target = parse_config(xml).target(["PER"])
    assert (target.kind, target.text.shape) == (kind.lower(), tag.lower())
    flagged = add_flag(xml, target)
    assert f'<{tag} showLabels="true"' in flagged
    again = parse_config(flagged).target(["PER"])
    assert again.flag == Flag("flag", "Needs review", kind.lower())
    assert add_flag(flagged, again) == flagged


def test_what_the_editor_shows_otherwise_than_it_is_held_is_not_taken() -> None:
    labels = '<ParagraphLabels name="l" toName="t"><Label value="PER"/></ParagraphLabels>'
    for more in ('contextScroll="true"', 'valueType="url"'):
        config = parse_config(f'<View>{labels}<Paragraphs name="t" value="$x" {more}/></View>')
        assert config.controls == ()
