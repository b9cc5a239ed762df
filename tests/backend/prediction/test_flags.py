"""Flags that control risk, from text to promise: words, sentences, places, documents, stored lists (METHODS 11)."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from backend.documents.document import PlainDocument
from backend.domain.flag_rule import RiskRule
from backend.domain.guarantee import Guarantee
from backend.domain.priority import doubt_of
from backend.domain.ranked import EARLIER_FLOOR, Candidate, RankedList, RankedText, RankedUnit, one_unit
from backend.domain.records import TextSpan
from backend.labelstudio.config import parse_config
from backend.labelstudio.render import render
from backend.prediction.answer import answer_of
from backend.prediction.calibration import Calibration
from backend.prediction.prediction import DoubtfulSpan, Prediction, count_places
from backend.prediction.predictor import Predictor
from backend.prediction.rethreshold import Remembered, rethreshold
from backend.prediction.scoring import score_labelled
from backend.prediction.starter import load_starter, starter_calibration, starter_levels, starter_name
from backend.store.packed_lists import unpack_ranked
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import model_directory
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers import LabelledText
from conformal.prediction import text_candidates
from conformal.risk import FLOOR, ErrorRows, RiskLevels, RiskPool, TaskErrors, fit_levels, span_doubts
from conformal.trellis import kbest
from tests.support.earlier_lists import narrow, pack_as_earlier

SENTENCES = (
    "Jordan Miller met Angela Merkel in Berlin. ",
    "Washington beat Manchester in the last minute. ",
    "It rained all day. ",
    "May went to Reading to see Charlotte Apple and Amazon of Jordan.",
)
DOCUMENT = "".join(SENTENCES)
TEXTS = [
    *(each.strip() for each in SENTENCES),
    "🙂 Siemens opens an office in Paris,\r\nsays Maria Lopez.",
    "",
    DOCUMENT,
]
CONFIG = """<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/><Label value="ORG"/>
<Label value="MISC"/></Labels><Labels name="flag" toName="text"><Label value="Needs review"/></Labels>
<Text name="text" value="$text"/></View>"""


@pytest.fixture(scope="module")
def tagger() -> NetworkTagger:
    return load_tagger()


@pytest.fixture(scope="module")
def plain(tagger: NetworkTagger) -> Calibration:
    return replace(starter_calibration(tagger, model_directory()), version=9)


def level_of(level: float, *, n: int = 300, calibrated: bool = True, max_error: str = "0.05") -> RiskLevels:
    pool = RiskPool("all", level, n, calibrated, 0.04, 0.06, ("en",), level)
    return RiskLevels(max_error, False, 100, (pool,))


def at(tagger: NetworkTagger, plain: Calibration, level: float) -> Predictor:
    return Predictor(tagger, replace(plain, guarantee=Guarantee.OWN, risk=level_of(level)), alpha="0.1")


def marked(made: Prediction) -> set[int]:
    return {position for span in made.spans if span.flagged for position in range(span.start, span.end)}


def test_four_words_for_what_flags_promise(tagger: NetworkTagger, plain: Calibration) -> None:
    starter = replace(plain, guarantee=Guarantee.BORROWED, risk=level_of(0.2, n=5000))
    none = level_of(0.0, n=7, calibrated=False)
    said = {
        "own": replace(plain, guarantee=Guarantee.OWN, risk=level_of(0.1, n=1234)),
        "borrowed": replace(plain, guarantee=Guarantee.ASSISTED, risk=none, fallback=starter),
        "none": replace(plain, guarantee=Guarantee.OWN, risk=none),
        "sets": replace(plain, risk=None),
    }
    made = {word: Predictor(tagger, each).predict(TEXTS[:1])[0] for word, each in said.items()}
    assert {word: each.as_dict()["flags"]["rule"] for word, each in made.items()} == {
        "own": "risk",
        "borrowed": "risk",
        "none": "risk",
        "sets": "sets",
    }
    for word in ("own", "borrowed", "none"):
        assert made[word].as_dict()["flags"]["guarantee"] == word
    own, borrowed, none_made = (made[word].flags for word in ("own", "borrowed", "none"))
    assert own is not None
    assert borrowed is not None
    assert none_made is not None
    assert own.sentence == (
        "If every amber place is put right, on average at most 5 % of a task's entities are wrong or missing "
        "(1,234 labels made without a prelabel)."
    )
    assert borrowed.sentence == (
        "No promise of your own yet: on texts like those of the starter calibration, if every amber place is put "
        "right, on average at most 5 % of a task's entities are wrong or missing."
    )
    assert (borrowed.level, borrowed.n) == (0.2, 5000)
    assert none_made.sentence == (
        "No promise: too few labels made without a prelabel (7) to leave anything alone at 5 %, so everything is to be "
        "checked."
    )
    assert none_made.level == 0.0
    assert all(span.flagged for span in made["none"].spans)
    assert made["sets"].flags is None


def test_levels_rest_on_blind_labels_whatever_the_thresholds_rest_on(plain: Calibration) -> None:
    """Assisted thresholds do not make the promise of flags assisted, nor the other way round."""
    for word in (Guarantee.OWN, Guarantee.ASSISTED, Guarantee.NONE):
        flags = replace(plain, guarantee=word, risk=level_of(0.1)).flags_for("en")
        assert flags is not None
        assert flags.guarantee is Guarantee.OWN
    bare = replace(plain, guarantee=Guarantee.BORROWED, risk=level_of(0.1)).flags_for("en")
    assert bare is not None
    assert bare.guarantee is Guarantee.BORROWED
    # A starter without a level of its own is nothing to borrow.
    poor = replace(plain, guarantee=Guarantee.BORROWED, risk=level_of(0.0, calibrated=False))
    lost = replace(plain, risk=level_of(0.0, n=3, calibrated=False), fallback=poor).flags_for("en")
    assert lost is not None
    assert (lost.guarantee, lost.level, lost.n) == (Guarantee.NONE, 0.0, 3)


@pytest.mark.parametrize(
    ("max_error", "sure", "said"),
    [("0.05", False, "on average at most 5 %"), ("0.1", True, "with 95 % certainty at most 10 %"),
     ("0.005", False, "on average at most 0.5 %")],
)  # fmt: skip
def test_sentences_say_the_share_and_how_sure(plain: Calibration, max_error: str, sure: bool, said: str) -> None:
    levels = replace(level_of(0.3, max_error=max_error), sure=sure)
    flags = replace(plain, guarantee=Guarantee.OWN, risk=levels).flags_for("en")
    assert flags is not None
    assert said in flags.sentence
    described = flags.as_dict()
    assert (described["max_error"], described["sure"], described["promise"]) == (max_error, sure, flags.sentence)
    assert json.loads(json.dumps(described)) == described


def test_a_level_that_flags_nothing_is_null_in_json(tagger: NetworkTagger, plain: Calibration) -> None:
    (made,) = at(tagger, plain, math.inf).predict(TEXTS[:1])
    described = made.as_dict()
    assert described["flags"]["level"] is None
    assert described["places"] == 0
    assert not any(span["flagged"] for span in described["spans"])
    json.loads(json.dumps(described, allow_nan=False))


def test_places_are_counted_and_marks_that_overlap_are_one_look() -> None:
    def mark(start: int, end: int, *, flagged: bool = True) -> DoubtfulSpan:
        return DoubtfulSpan(start, end, (), flagged)

    assert count_places([]) == 0
    assert count_places([mark(0, 5, flagged=False)]) == 0
    assert count_places([mark(0, 5), mark(3, 9), mark(9, 12), mark(20, 21), mark(1, 2, flagged=False)]) == 3


def test_an_answer_keeps_places_doubts_and_the_promise(tagger: NetworkTagger, plain: Calibration) -> None:
    for made in at(tagger, plain, 0.05).predict(TEXTS):
        answer = answer_of(made)
        assert answer.flags == made.flags
        assert answer.places == made.places == count_places(made.spans)
        assert all(span.flagged == (span.doubt is not None and span.doubt >= 0.05) for span in made.spans)
        assert answer.doubt == doubt_of(unpack_ranked(answer.ranked))
        if len(made.sets.units) == 1:
            best = math.exp(min(0.0, made.sets.labelings[0].log_probability))
            assert answer.doubt == pytest.approx(1.0 - best, abs=1e-9)


def test_the_doubt_of_a_document_is_the_share_that_is_expected_to_be_wrong() -> None:
    sure = RankedUnit(0, 9, "en/1-10", _list([(TextSpan(0, 3, "PER"),)], [(0, 3, (0.9, 0.05))]))
    doubtful = RankedUnit(9, 20, "en/1-10", _list([()], [(10, 13, (0.0, 0.25))]))
    # Expected true: 0.95 + 0.25; missing: 0.05 + 0.25; false: 0.1.
    assert doubt_of(RankedText((sure, doubtful))) == pytest.approx((0.3 + 0.1) / (1.2 + 0.1))
    assert doubt_of(RankedText(())) == 0.0


def _list(labelings: list[tuple[TextSpan, ...]], spans: list[tuple[int, int, tuple[float, ...]]]) -> RankedList:
    logs = tuple(-0.1 * (i + 1) for i in range(len(labelings)))
    candidates = tuple(Candidate(*each) for each in spans)
    return RankedList(("PER", "LOC"), logs, tuple(labelings), exhausted=False, candidates=candidates)


def test_sure_flags_a_superset(tagger: NetworkTagger, plain: Calibration) -> None:
    rng = np.random.default_rng(3)
    tasks = [TaskErrors(2, 2, tuple(rng.random(int(rng.random() < 0.15)).tolist()), ()) for _ in range(400)]
    rows, languages = ErrorRows.of(tasks), ["en"] * 400
    on_average, sure = (fit_levels(rows, languages, max_error="0.05", sure=each, n_min=100) for each in (False, True))
    assert 0 < sure.pool("en").level < on_average.pool("en").level < math.inf
    assert sure.pool("en").plain == on_average.pool("en").level
    few, many = (
        Predictor(tagger, replace(plain, guarantee=Guarantee.OWN, risk=each)).predict(TEXTS)
        for each in (on_average, sure)
    )
    assert all(marked(one) <= marked(other) for one, other in zip(few, many, strict=True))
    assert sum(len(marked(each)) for each in many) > sum(len(marked(each)) for each in few)


def test_given_spans_promise_nothing(tagger: NetworkTagger, plain: Calibration) -> None:
    predictor = at(tagger, plain, 0.1)
    fixed = [[TextSpan(0, 13, "PER")], []]
    given, free = predictor.predict(TEXTS[:2], fixed=fixed)
    assert given.flags is not None
    assert (given.flags.guarantee, given.guarantee) == (Guarantee.NONE, Guarantee.NONE)
    assert given.flags.sentence == (
        "No promise: some spans were given, and what is amber was chosen for texts without any."
    )
    assert free.flags is not None
    assert free.flags.guarantee is Guarantee.OWN
    without = Predictor(tagger, plain).predict(TEXTS[:1], fixed=fixed[:1])
    assert without[0].flags is None


def test_every_sentence_of_a_document_is_flagged_at_the_level_of_its_task(
    tagger: NetworkTagger, plain: Calibration
) -> None:
    (made,) = at(tagger, plain, 0.02).predict([DOCUMENT], languages=["en"])
    assert len(made.sets.units) == len(SENTENCES)
    edges = made.decoded.char_bounds()
    for (start, end), unit in zip(edges, made.sets.units, strict=True):
        here = [span for span in made.spans if start <= span.start < end]
        assert len(here) == len(unit.spans)
        assert all(span.end <= end for span in here)
        assert [span.flagged for span in here] == [(span.doubt or 0.0) >= 0.02 for span in here]
    assert any(span.flagged for span in made.spans)
    assert made.places == count_places(made.spans)
    assert all(one <= other for one, other in pairwise(span.start for span in made.spans))


def test_regions_in_label_studio_carry_the_promise(tagger: NetworkTagger, plain: Calibration) -> None:
    target = parse_config(CONFIG).target(tagger.space.classes)
    for predictor, promised in ((at(tagger, plain, 0.05), True), (Predictor(tagger, plain), False)):
        (made,) = predictor.predict(TEXTS[:1])
        first, *_ = render(answer_of(made), PlainDocument(TEXTS[0]), target=target, project="1", task="2")
        metas = [result["meta"] for result in first["result"] if "meta" in result]
        assert metas
        for meta in metas:
            assert ("flags" in meta) == promised
            if promised:
                assert made.flags is not None
                assert meta["flags"] == {
                    "max_error": "0.05",
                    "guarantee": "own",
                    "n": 300,
                    "promise": made.flags.sentence,
                }


@pytest.mark.parametrize("level", [0.0, FLOOR, 0.01, 0.2, math.inf])
def test_a_list_answers_under_another_level_as_the_model_would(
    tagger: NetworkTagger, plain: Calibration, level: float
) -> None:
    """The list was made while every span with several labels was flagged; nothing of it needs the model."""
    before, later = Predictor(tagger, plain, alpha="0.3"), at(tagger, plain, level)
    method = plain.thresholds.entity_method
    for text, old, new in zip(TEXTS, before.predict(TEXTS), later.predict(TEXTS), strict=True):
        kept = Remembered(answer_of(old).ranked, old.sets.stratum, old.language, method)
        cut = rethreshold(later, text, kept)
        assert cut is not None
        one, other = answer_of(cut), answer_of(new)
        assert [(s.start, s.end, s.flagged, [x.label for x in s.labels], s.doubt, s.also) for s in one.spans] == [
            (s.start, s.end, s.flagged, [x.label for x in s.labels], s.doubt, s.also) for s in other.spans
        ]
        assert (one.flags, one.places, one.doubt) == (other.flags, other.places, other.doubt)


def test_lists_of_an_earlier_release_are_read_and_refused_for_flags_with_a_promise(
    tagger: NetworkTagger, plain: Calibration
) -> None:
    sets, risk = Predictor(tagger, plain, alpha="0.1"), at(tagger, plain, 0.05)
    method = plain.thresholds.entity_method
    forms = set()
    for text, made in zip(TEXTS, sets.predict(TEXTS), strict=True):
        new = unpack_ranked(answer_of(made).ranked)
        assert new.floor == FLOOR
        old = pack_as_earlier(new)
        forms.add(old[0])
        read = unpack_ranked(old)
        assert read.floor == EARLIER_FLOOR > FLOOR
        expected = tuple(replace(unit, ranked=narrow(unit.ranked)) for unit in new.units)
        if len(new.units) == 1:
            expected = one_unit(expected[0].ranked).units
        assert read.units == expected
        kept = Remembered(old, made.sets.stratum, made.language, method)
        cut = rethreshold(sets, text, kept)
        assert cut is not None
        assert answer_of(cut).spans == answer_of(made).spans
        assert rethreshold(risk, text, kept) is None
        assert rethreshold(risk, text, replace(kept, ranked=answer_of(made).ranked)) is not None
    assert forms == {1, 2}


def by_hand(tagger: NetworkTagger, plain: Calibration, text: LabelledText) -> tuple[int, int, list[float], list[float]]:
    """Errors of the best labeling span by span, straight from the definition (METHODS 11.1 and 11.3)."""
    (tagged,) = tagger.potentials([text.text], languages=[text.language])
    best: set[tuple[int, int, str]] = set()
    listed: list[tuple[int, int, float]] = []
    for (first, last), chain in zip(tagged.units, tagged.unit_chains(), strict=True):
        tokens = tagged.tokens[first:last]
        spans = tagger.space.spans(kbest(chain, 1).labels[0])
        said = {(s.start, s.end): tagger.space.classes.index(s.label) for s in spans}
        best |= {(tokens[s.start].start, tokens[s.end - 1].end, s.label) for s in spans}
        found = text_candidates(chain, tagger.space, thresholds=plain.thresholds, best=spans)
        doubts = span_doubts(found.probabilities, [said.get(key) for key in found.keys]).tolist()
        listed += [
            (tokens[start].start, tokens[end - 1].end, doubt)
            for (start, end), doubt in zip(found.keys, doubts, strict=True)
        ]
    true = {(s.start, s.end, s.label) for s in text.spans if s.start < s.end}

    def level(span: tuple[int, int, str]) -> float:
        return max((doubt for start, end, doubt in listed if start < span[1] and span[0] < end), default=0.0)

    return len(true), len(best), sorted(map(level, true - best)), sorted(map(level, best - true))


def test_errors_of_a_scored_text_are_those_of_a_count_by_hand(tagger: NetworkTagger, plain: Calibration) -> None:
    berlin = DOCUMENT.index("Berlin")
    labels = [
        (),
        (TextSpan(0, 13, "PER"), TextSpan(18, 31, "PER"), TextSpan(berlin, berlin + 6, "LOC")),
        (TextSpan(0, 13, "PER"), TextSpan(0, 13, "PER")),  # drawn twice, counts once
        (TextSpan(0, 3, "PER"), TextSpan(2, 20, "ORG")),  # cuts tokens, overlaps
        (TextSpan(berlin, berlin + 20, "LOC"),),  # crosses a sentence boundary
        (TextSpan(0, 6, "Spaceship"), TextSpan(7, 13, "PER")),  # a class that the model does not know
        (TextSpan(5, 5, "PER"), TextSpan(len(DOCUMENT) - 3, len(DOCUMENT) + 40, "ORG")),  # empty; outside the text
        (TextSpan(0, len(DOCUMENT), "MISC"),),
    ]
    texts = [LabelledText(DOCUMENT, spans, language="en") for spans in labels]
    texts += [LabelledText(text, (TextSpan(0, 6, "PER"),), language="en") for text in TEXTS[:5]]
    texts += [LabelledText("", (), language="en"), LabelledText("", (TextSpan(0, 4, "PER"),), language="en")]
    wrong = 0
    for text, scored in zip(texts, score_labelled(tagger, texts, chunk=1), strict=True):
        errors = scored.errors
        found = (errors.entities, errors.best, sorted(errors.missing), sorted(errors.false))
        expected = by_hand(tagger, plain, text)
        assert found[:2] == expected[:2]
        assert found[2] == pytest.approx(expected[2], abs=1e-9)
        assert found[3] == pytest.approx(expected[3], abs=1e-9)
        wrong += len(errors.missing) + len(errors.false)
        assert all(unit.scores.listed is None for unit in scored.units)  # a study holds many texts
    assert wrong > 20


def test_what_nobody_lists_is_seen_only_when_everything_is_flagged(tagger: NetworkTagger) -> None:
    text = LabelledText("it rained all day .", (TextSpan(3, 9, "Weather"),), language="en")
    (scored,) = score_labelled(tagger, [text])
    assert scored.errors.entities == 1
    (level,) = scored.errors.missing
    assert level < 0.5
    assert ErrorRows.of([scored.errors]).losses(level).tolist() == [0.0]
    assert ErrorRows.of([scored.errors]).losses(1.0).tolist() == [1.0]


def test_the_bundled_starter_has_levels_to_borrow(tagger: NetworkTagger) -> None:
    rule = RiskRule("0.05")
    made = starter_calibration(tagger, model_directory(), flags=rule)
    starter = load_starter(model_directory() / starter_name(tagger.space.classes))
    assert starter.errors is not None
    assert len(starter.errors) == starter.tasks.task_count == len(starter.languages)
    assert made.risk == starter_levels(starter, rule, n_min=100)
    flags = made.flags_for("en")
    assert flags is not None
    assert flags.guarantee is Guarantee.BORROWED
    assert flags.level > 0
    # What it was fitted on keeps what is promised (that chose it, so it is no measurement).
    pool = made.risk.pool("en") if made.risk is not None else None
    assert pool is not None
    assert pool.risk is not None
    assert pool.risk <= 0.05
    assert starter_levels(replace(starter, errors=None, languages=()), rule, n_min=100).pool("en").calibrated is False
    nowhere = starter_calibration(tagger, model_directory() / "nowhere", flags=rule).flags_for("en")
    assert nowhere is not None
    assert (nowhere.guarantee, nowhere.n, nowhere.level) == (Guarantee.NONE, 0, 0.0)


def test_white_space_marked_with_a_name_is_no_error(tagger: NetworkTagger) -> None:
    text = "Angela Merkel lives in Berlin today."
    exact = (TextSpan(0, 13, "PER"), TextSpan(23, 29, "LOC"))
    wider = (TextSpan(0, 14, "PER"), TextSpan(22, 30, "LOC"))
    labelled = [LabelledText(text, spans, language="en") for spans in (exact, wider)]
    plain, spaced = (scored.errors for scored in score_labelled(tagger, labelled))
    assert spaced == plain
    assert plain.entities == 2
