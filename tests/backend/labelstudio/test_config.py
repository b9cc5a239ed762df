"""Label configs: what may be said in a project, and that nothing hostile gets through the XML."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.target import Flag
from backend.errors import InvalidLabelConfig
from backend.labelstudio.config import parse_config
from backend.tagger.identity import ModelHeader, viewed

CLASSES = ["LOC", "MISC", "ORG", "PER"]


def config(labels: str, *, text: str = '<Text name="text" value="$text"/>', more: str = "") -> str:
    return f'<View><Labels name="label" toName="text">{labels}</Labels>{more}{text}</View>'


def test_names_come_from_the_config() -> None:
    target = parse_config(
        '<View><Header value="Read"/><Labels name="entity" toName="body"><Label value="PER"/></Labels>'
        '<Text name="body" value="$article" valueType="url"/></View>'
    ).target(CLASSES)
    assert (target.control, target.text.name, target.text.key, target.text.is_url) == (
        "entity",
        "body",
        "article",
        True,
    )
    assert target.labels == {"PER": "PER"}
    assert target.flag is None


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ('<Label value="Person" predicted_values="PER"/>', {"PER": "Person"}),
        ('<Label value="Ort" predicted_values=" loc , Gpe "/>', {"LOC": "Ort"}),
        ('<Label value="Thing" predictedValues="MISC"/>', {"MISC": "Thing"}),
        ('<Label value="per"/>', {"PER": "per"}),
        ('<Label value="Person"/>', {"PER": "Person"}),
        ('<Label value="Organisation"/>', {"ORG": "Organisation"}),
        ('<Label value="A person" alias="PER"/>', {"PER": "PER"}),
        ('<Label value="PER" alias="P"/>', {"PER": "P"}),
        # What predicted_values say wins over a label that is only called like the class.
        ('<Label value="PER"/><Label value="Human" predicted_values="per"/>', {"PER": "Human"}),
        ('<View><Label value="ORG"/></View>', {"ORG": "ORG"}),
    ],
)
def test_a_class_finds_its_label(label: str, expected: dict[str, str]) -> None:
    assert parse_config(config(label)).target(CLASSES).labels == expected


def test_a_text_is_chosen_before_a_page_that_stands_above_it() -> None:
    page = '<HyperText name="page" value="$html"/><Labels name="in_page" toName="page"><Label value="PER"/></Labels>'
    text = (
        '<Labels name="in_text" toName="text"><Label value="PER"/></Labels><Text name="text" value="$t" encoding=""/>'
    )
    both = parse_config(f"<View>{page}{text}</View>")
    assert both.target(CLASSES).control == "in_text", "as before pages were read"
    assert both.target([]).control == "in_text"
    assert both.target(CLASSES, control="in_page").kind == "labels"
    assert parse_config(f"<View>{page}</View>").target(CLASSES).control == "in_page"


def test_classes_that_share_a_label_are_merged_in_the_models_order() -> None:
    target = parse_config(config('<Label value="Name" predicted_values="PER,ORG"/><Label value="LOC"/>')).target(
        CLASSES
    )
    assert target.labels == {"LOC": "LOC", "ORG": "Name", "PER": "Name"}
    assert target.classes == ("LOC", "ORG")
    assert target.merged == {"LOC": "LOC", "ORG": "ORG", "PER": "ORG"}
    assert target.class_of("Name") == "ORG"
    assert target.class_of("Elsewhere") is None


def test_the_first_usable_pair_is_taken_unless_one_is_named() -> None:
    two = (
        '<View><Labels name="parts" toName="a"><Label value="verb"/></Labels>'
        '<Labels name="first" toName="a"><Label value="PER"/></Labels>'
        '<Labels name="second" toName="b,a"><Label value="LOC"/></Labels>'
        '<Text name="a" value="$one"/><Text name="b" value="$two"/></View>'
    )
    parsed = parse_config(two)
    assert (parsed.target(CLASSES).control, parsed.target(CLASSES).text.key) == ("first", "one")
    named = parsed.target(CLASSES, control="second")
    assert (named.control, named.text.name) == ("second", "b")
    with pytest.raises(InvalidLabelConfig, match="SURESPAN_LABELS_CONTROL"):
        parsed.target(CLASSES, control="third")


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        ('<Labels name="flag" toName="text"><Label value="Needs review"/></Labels>', Flag("flag", "Needs review")),
        ('<Labels name="x" toName="text"><Label value="needs_review"/></Labels>', Flag("x", "needs_review")),
        ('<Labels name="flag" toName="text"><Label value="Hmm"/></Labels>', Flag("flag", "Hmm")),
        ('<Labels name="x" toName="text"><Label value="verb"/></Labels>', None),
        ('<Labels name="flag" toName="other"><Label value="Needs review"/></Labels>', None),
        ('<Choices name="flag" toName="text"><Choice value="Needs review"/></Choices>', None),
    ],
)
def test_the_flag_control_is_recognised(control: str, expected: Flag | None) -> None:
    assert parse_config(config('<Label value="PER"/>', more=control)).target(CLASSES).flag == expected


@pytest.mark.parametrize(
    "xml",
    [
        '<View><Labels name="l" toName="t"><Label value="PER"/></Labels><Image name="t" value="$image"/></View>',
        '<View><Labels name="l" toName="t"><Label value="PER"/></Labels><Text name="t" value="the same"/></View>',
        '<View><HyperText name="t" value="$html" valueType="url"/><Labels name="l" toName="t"/></View>',
        '<View><Text name="t" value="$text"/><HyperTextLabels name="l" toName="t"/></View>',
        "<View/>",
    ],
)
def test_a_config_without_labels_over_a_text_says_so(xml: str) -> None:
    with pytest.raises(InvalidLabelConfig, match="expected a Labels control over a Text"):
        parse_config(xml).target(CLASSES)


@pytest.mark.parametrize(
    ("labels", "unknown"),
    [
        ('<Label value="Drug"/><Label value="Symptom"/>', ("Drug", "Symptom")),
        ('<Label value="Drug"/><Label value="Drug"/>', ("Drug",)),
        ('<Label value="O"/><Label value=" "/><Label value="a/b &amp; &quot;c&quot; 🎉"/>', ('a/b & "c" 🎉',)),
        ("", ()),
    ],
)
def test_labels_that_the_model_does_not_know_make_a_blank_target(labels: str, unknown: tuple[str, ...]) -> None:
    review = '<Labels name="flag" toName="text"><Label value="Needs review"/></Labels>'
    for more in ("", review):
        target = parse_config(config(labels, more=more)).target(CLASSES)
        assert (target.blank, target.unknown, target.control) == (True, unknown, "label")
        assert (target.flag is not None) == bool(more)
        header = ModelHeader("m", "ab", tuple(CLASSES))
        assert viewed(header, target) == viewed(header, target)
        assert viewed(header, target).blank
    behind = f'<View>{review}<Labels name="l" toName="text">{labels}</Labels><Text name="text" value="$text"/></View>'
    assert parse_config(behind).target(CLASSES).control == "l"  # marks of doubt are not what people label with


def test_labels_that_differ_by_case_alone_stay_apart() -> None:
    target = parse_config(config('<Label value="drug"/><Label value="Drug"/>')).target(["Drug", "drug", "DRUG"])
    assert target.labels == {"Drug": "Drug", "drug": "drug", "DRUG": "drug"}


def test_known_labels_are_kept_apart_from_unknown_ones() -> None:
    target = parse_config(config('<Label value="Drug"/><Label value="Person"/><Label value="Symptom"/>')).target(
        CLASSES
    )
    assert (target.labels, target.unknown, target.blank) == ({"PER": "Person"}, ("Drug", "Symptom"), False)


LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("", "well-formed"),
        ("{}", "well-formed"),
        ("<View>", "well-formed"),
        ("<View><Text name='a' value='&nbsp;'/></View>", "well-formed"),
        ("<View>\x00</View>", "well-formed"),
        ("<View>\ud800</View>", "characters"),
        (f'<!DOCTYPE v [<!ENTITY l0 "ha">{LAUGHS}]><View>&l9;</View>', "without DTD"),
        ('<!DOCTYPE v [<!ENTITY f SYSTEM "file:///etc/hostname">]><View>&f;</View>', "without DTD"),
        ('<!DOCTYPE v SYSTEM "http://127.0.0.1:1/x.dtd"><View/>', "without DTD"),
        ("<View>" + " " * 1_000_001 + "</View>", "at most 1000000 characters"),
    ],
)
def test_hostile_xml_is_refused(xml: str, message: str) -> None:
    with pytest.raises(InvalidLabelConfig, match=message):
        parse_config(xml)


def test_deep_nesting_is_no_trouble() -> None:
    deep = "<View>" * 20_000 + '<Text name="text" value="$text"/>' + "</View>" * 20_000
    assert parse_config(deep).controls == ()


@given(st.text(max_size=200))
def test_any_text_is_a_config_or_refused(xml: str) -> None:
    with contextlib.suppress(InvalidLabelConfig):
        parse_config(xml)
