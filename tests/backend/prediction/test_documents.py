"""Texts of several sentences: a set for each, their product, and what is kept of them (METHODS 10)."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.calibration.score_rows import drawn_unit, unit_rows
from backend.documents.document import PlainDocument
from backend.domain.records import TextSpan
from backend.labelstudio.config import parse_config
from backend.labelstudio.render import render
from backend.prediction.answer import answer_of
from backend.prediction.prediction import MOST_EXACT
from backend.prediction.predictor import Predictor
from backend.prediction.promise import describe_promise
from backend.prediction.rethreshold import Remembered, rethreshold
from backend.prediction.scoring import _touched, score_labelled
from backend.prediction.starter import starter_calibration
from backend.store.packed_lists import unpack_ranked
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import model_directory
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers import LabelledText
from backend.tagger.whole import WholeTexts
from conformal.trellis import log_probability

SENTENCES = (
    "Jordan Miller met Angela Merkel in Berlin. ",
    "Washington beat Manchester in the last minute. ",
    "It rained all day. ",
    "May went to Reading to see Charlotte Apple and Amazon of Jordan.",
)
DOCUMENT = "".join(SENTENCES)
LONG = "".join(SENTENCES[:3]) * 40
CONFIG = """<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/><Label value="ORG"/>
<Label value="MISC"/></Labels><Labels name="flag" toName="text"><Label value="Needs review"/></Labels>
<Text name="text" value="$text"/></View>"""


@pytest.fixture(scope="module")
def tagger() -> NetworkTagger:
    return load_tagger()


@pytest.fixture(scope="module")
def predictor(tagger: NetworkTagger) -> Predictor:
    return Predictor(tagger, starter_calibration(tagger, model_directory()), alpha="0.05")


def test_every_sentence_has_the_set_it_has_alone(tagger: NetworkTagger, predictor: Predictor) -> None:
    (made,) = predictor.predict([DOCUMENT], languages=["en"])
    (tagged,) = tagger.potentials([DOCUMENT], languages=["en"])
    assert [DOCUMENT[start:end] for start, end in tagged.char_bounds()] == list(SENTENCES)
    described = made.as_dict()
    assert [(unit["start"], unit["end"]) for unit in described["units"]] == tagged.char_bounds()
    assert described["stratum"] == "several"
    assert [unit["stratum"] for unit in described["units"]] == ["en/1-10", "en/1-10", "en/1-10", "en/11-20"]
    sizes = [unit["set_size"] for unit in described["units"]]
    assert made.sets.set_size == np.prod([max(1, size) for size in sizes])
    for unit, chain in zip(made.sets.units, tagged.unit_chains(), strict=True):
        inside = sum(-labeling.log_probability <= unit.threshold for labeling in unit.labelings)
        assert inside == min(unit.set_size or 0, predictor.max_shown)
        best = tagger.space.ids(unit.labelings[0].spans, chain.length)
        assert log_probability(chain, best) == pytest.approx(unit.labelings[0].log_probability, abs=1e-9)


def test_further_ranks_differ_where_doubt_is_greatest(predictor: Predictor) -> None:
    (made,) = predictor.predict([DOCUMENT])
    best, second, *_ = made.sets.labelings
    assert second.log_probability <= best.log_probability
    gaps = [
        (unit.labelings[0].log_probability - unit.labelings[1].log_probability, start, end)
        for (start, end), unit in zip(made.sets.bounds, made.sets.units, strict=True)
        if len(unit.labelings) > 1
    ]
    _, start, end = min(gaps)
    changed = set(best.spans) ^ set(second.spans)
    assert changed
    assert all(start <= span.start < span.end <= end for span in changed)
    logs = [labeling.log_probability for labeling in made.sets.labelings]
    assert logs == sorted(logs, reverse=True)


def test_doubtful_spans_name_other_labelings_of_their_own_sentence(predictor: Predictor) -> None:
    (made,) = predictor.predict([DOCUMENT])
    target = parse_config(CONFIG).target(predictor.tagger.space.classes)
    entries = render(answer_of(made), PlainDocument(DOCUMENT), target=target, project="1", task="2")
    flagged = [each for each in entries[-1]["result"] if each["from_name"] == "flag" and "also" in each["meta"]]
    assert flagged
    bounds = made.decoded.char_bounds()
    for each in flagged:
        value, meta = each["value"], each["meta"]
        sentence = next(DOCUMENT[a:b] for a, b in bounds if a <= value["start"] < b)
        assert 1 <= len(meta["also"]) <= 3
        assert ". In this sentence also plausible: " in meta["text"][0]
        for words in meta["also"]:
            names = [part.rpartition(" (")[0] for part in words.split("), ")] if words != "no entity" else []
            assert all(name in sentence for name in names)
    one = render(
        answer_of(predictor.predict([SENTENCES[0]])[0]),
        PlainDocument(SENTENCES[0]),
        target=target,
        project="1",
        task="2",
    )
    assert not any("also" in each.get("meta", {}) for each in one[-1]["result"])


def test_a_long_texts_size_is_a_power_of_ten_and_its_list_stays_small(predictor: Predictor) -> None:
    (made,) = predictor.predict([LONG])
    described = json.loads(json.dumps(made.as_dict()))
    assert not described["open"]
    assert described["set_size"] is None
    assert made.sets.set_size is not None
    assert made.sets.set_size > MOST_EXACT
    assert described["set_size_log10"] == pytest.approx(len(str(made.sets.set_size)) - 1, abs=1.0)
    answer = answer_of(made)
    assert answer.units == len(described["units"]) == 120
    assert len(answer.ranked) < 120 * 300
    assert "nothing is promised" not in describe_promise(made)  # borrowed: no promise at all
    assert "No promise" in describe_promise(made)


def test_sets_cut_again_from_the_stored_lists_are_the_same(tagger: NetworkTagger, predictor: Predictor) -> None:
    (made,) = predictor.predict([DOCUMENT], languages=["en"])
    answer = answer_of(made)
    remembered = Remembered(answer.ranked, answer.stratum, "en", predictor.calibration.thresholds.entity_method)
    for alpha in ("0.05", "0.2"):
        other = Predictor(tagger, predictor.calibration, alpha=alpha)
        again, asked = rethreshold(other, DOCUMENT, remembered), other.predict([DOCUMENT], languages=["en"])[0]
        if again is None:
            continue
        assert [unit.set_size for unit in again.sets.units] == [unit.set_size for unit in asked.sets.units]
        assert [each.spans for each in again.sets.labelings] == [each.spans for each in asked.sets.labelings]
        assert again.sets.spans == pytest.approx(asked.sets.spans) or len(again.sets.spans) == len(asked.sets.spans)
    listed = unpack_ranked(answer.ranked)
    assert [unit.stratum for unit in listed.units] == [unit.stratum for unit in made.sets.units]
    assert listed.best == made.labelings[0].spans


def test_what_was_touched_alone_is_completed(predictor: Predictor) -> None:
    start = DOCUMENT.index("Manchester")
    fixed = [TextSpan(start, start + len("Manchester"), "ORG")]
    (made,) = predictor.predict([DOCUMENT], fixed=[fixed])
    begin, end = len(SENTENCES[0]), len(SENTENCES[0] + SENTENCES[1])
    assert fixed[0] in made.labelings[0].spans
    assert all(begin <= span.start < span.end <= end for labeling in made.labelings for span in labeling.spans)


def labelled(*spans: TextSpan) -> LabelledText:
    return LabelledText(DOCUMENT, spans, language="en")


def test_scores_are_those_of_the_units_and_crossing_spans_reach_every_unit_they_touch(tagger: NetworkTagger) -> None:
    sound = TextSpan(0, 13, "PER")
    crossing = TextSpan(DOCUMENT.index("Berlin"), DOCUMENT.index(" beat"), "ORG")
    (plain,) = score_labelled(tagger, [labelled(sound)])
    (crossed,) = score_labelled(tagger, [labelled(sound, crossing)])
    assert [unit.scores.expressible for unit in plain.units] == [True] * 4
    assert [unit.scores.expressible for unit in crossed.units] == [False, False, True, True]
    assert [unit.entities for unit in crossed.units] == [2, 0, 0, 0]
    rows = unit_rows(crossed, drawn=2)
    assert [row.drawn for row in rows] == [False, False, True, False]
    assert [(row.start, row.end) for row in rows] == [(unit.start, unit.end) for unit in plain.units]
    lost = [row for row in rows[0].entities if (row.start, row.end) == (crossing.start, crossing.end)]
    assert [row.probability for row in lost] == [0.0]
    assert rows[2].scores == unit_rows(plain, drawn=2)[2].scores
    far = TextSpan(len(DOCUMENT) + 5, len(DOCUMENT) + 9, "PER")
    (outside,) = score_labelled(tagger, [labelled(far)])
    assert [unit.scores.expressible for unit in outside.units] == [True, True, True, False]


def test_a_whole_text_is_one_unit_under_another_hash(tagger: NetworkTagger) -> None:
    whole = WholeTexts(tagger)
    assert whole.hash != tagger.hash
    assert whole.base_hash == tagger.base_hash
    (scored,) = score_labelled(whole, [labelled(TextSpan(0, 13, "PER"))])
    (unit,) = scored.units
    assert (unit.start, unit.end, unit.cell) == (0, len(DOCUMENT), "en/31-40")
    (parts,) = score_labelled(tagger, [labelled(TextSpan(0, 13, "PER"))])
    assert unit.scores.log_probability == pytest.approx(
        sum(each.scores.log_probability for each in parts.units), abs=1e-6
    )


def test_the_drawn_unit_depends_on_the_task_alone_and_is_any_of_them() -> None:
    drawn = [drawn_unit("7.1", str(task), 5) for task in range(2000)]
    assert drawn == [drawn_unit("7.1", str(task), 5) for task in range(2000)]
    counts = np.bincount(drawn, minlength=5)
    assert counts.min() > 330
    assert drawn_unit("7.1", "1", 1) == 0


@pytest.mark.parametrize(
    "text",
    [
        "no sentence end here and none there " * 200,
        "Ja. " * 600,
        "مرحبا بالعالم. التقى أحمد بمحمد في القاهرة. " * 30,
        "東京は日本の首都です。田中さんは京都に住んでいます。" * 30,
        "\n\n\n  \t",
        "vitamin C\u00a0. Anna met Bob\u2028next line. " * 20,
    ],
    ids=["no end", "one-word sentences", "right to left", "unspaced", "blank", "odd spaces"],
)
def test_odd_texts_have_units_that_are_the_text(predictor: Predictor, text: str) -> None:
    (made,) = predictor.predict([text])
    bounds = made.decoded.char_bounds()
    assert "".join(text[start:end] for start, end in bounds) == text
    assert made.sets.bounds[0][0] == 0
    assert made.sets.bounds[-1][1] == len(made.decoded.tokens)
    for labeling in made.labelings:
        assert all(0 <= span.start < span.end <= len(text) for span in labeling.spans)


@given(
    cuts=st.lists(st.integers(1, 40), unique=True, max_size=8),
    spans=st.lists(st.tuples(st.integers(-5, 60), st.integers(-5, 60)), max_size=6),
)
def test_spans_are_found_in_the_units_they_touch(cuts: list[int], spans: list[tuple[int, int]]) -> None:
    starts = [0, *sorted(cuts)]
    chars = list(pairwise([*starts, 41]))
    for start, end in spans:
        held = [i for i, (first, last) in enumerate(chars) if start < last and end > first]
        nearest = next((i for i, (first, last) in enumerate(chars) if first <= start < last), 0 if start < 0 else -1)
        expected = held or [nearest % len(chars)]
        assert list(_touched(TextSpan(start, end, "PER"), chars, starts)) == expected
