"""What flags left behind, judged by labels that came later: losses, counters, alarms, the report (METHODS 11.5)."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

import numpy as np
import pytest

from backend.calibration.score_rows import error_row
from backend.domain.guarantee import Guarantee
from backend.domain.ranked import Candidate, RankedList, RankedText, one_unit
from backend.domain.records import AnnotationRecord, Draw, ErrorRow, SequenceScores, TextSpan, VersionRecord
from backend.monitoring.alarms import find_alarms, loss_interval, unlucky_risk
from backend.monitoring.flag_risk import judge_risk, risk_flags
from backend.monitoring.report import flags_report
from backend.prediction.answer import answer_of
from backend.prediction.calibration import Calibration
from backend.prediction.predictor import Predictor
from backend.prediction.scoring import score_labelled
from backend.prediction.starter import starter_calibration
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores
from backend.store.judgements import MILLION, RISK, CoverageRow, Judged, JudgedRisk, coverage_rows, record_judgement
from backend.store.labels import record_annotation
from backend.store.packed_lists import unpack_ranked
from backend.store.projects import ensure_model, ensure_project
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import model_directory
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers import LabelledText
from conformal.risk import FLOOR, ErrorRows, RiskLevels, RiskPool, control_risk
from tests.support.earlier_lists import pack_as_earlier

DOCUMENT = (
    "Jordan Miller met Angela Merkel in Berlin. Washington beat Manchester in the last minute. "
    "May went to Reading to see Charlotte Apple and Amazon of Jordan."
)


@pytest.fixture(scope="module")
def tagger() -> NetworkTagger:
    return load_tagger()


@pytest.fixture(scope="module")
def plain(tagger: NetworkTagger) -> Calibration:
    return starter_calibration(tagger, model_directory())


def at_level(plain: Calibration, level: float) -> Calibration:
    pool = RiskPool("all", level, 300, True, 0.04, 0.06, ("en",), level)
    return replace(plain, guarantee=Guarantee.OWN, version=5, risk=RiskLevels("0.05", False, 100, (pool,)))


@pytest.mark.parametrize("level", [0.0, FLOOR, 0.003, 0.05, 0.4, math.inf])
def test_a_served_list_is_judged_as_a_label_is_scored(tagger: NetworkTagger, plain: Calibration, level: float) -> None:
    """Live risk and the rows that fit levels are one number: otherwise a promise would be watched by another."""
    labels = [
        (TextSpan(0, 13, "PER"), TextSpan(18, 31, "PER"), TextSpan(35, 41, "LOC")),
        (TextSpan(0, 6, "LOC"), TextSpan(40, 60, "ORG"), TextSpan(5, 5, "PER")),
        (),
    ]
    used = at_level(plain, level)
    for text in (DOCUMENT, DOCUMENT[:42]):
        (made,) = Predictor(tagger, used).predict([text], languages=["en"])
        listed = unpack_ranked(answer_of(made).ranked)
        for spans in labels:
            (scored,) = score_labelled(tagger, [LabelledText(text, spans, language="en")], chunk=1)
            (loss,) = ErrorRows.of([scored.errors]).losses(level).tolist()
            stratum = made.sets.stratum or "en/1-10"
            judged = judge_risk(listed, error_row(scored), calibration=used, stratum=stratum)
            assert judged == JudgedRisk("all", 300, "own", "0.05", loss)


def test_marks_are_those_that_were_shown(tagger: NetworkTagger, plain: Calibration) -> None:
    for level in (0.01, 0.1):
        (made,) = Predictor(tagger, at_level(plain, level)).predict([DOCUMENT], languages=["en"])
        listed = unpack_ranked(answer_of(made).ranked)
        found = [span for unit in listed.units for span in risk_flags(unit.ranked, level)]
        assert sorted(found) == sorted((span.start, span.end) for span in made.spans if span.flagged)


def test_what_cannot_be_judged_is_not(plain: Calibration) -> None:
    sure = RankedList(("PER",), (-0.1,), ((TextSpan(0, 3, "PER"),),), True, (Candidate(0, 3, (0.9,)),))
    used, spans = at_level(plain, 0.05), ErrorRow(1, 1)
    known = one_unit(sure, floor=FLOOR)
    assert judge_risk(known, spans, calibration=used, stratum="en/1-10") == JudgedRisk("all", 300, "own", "0.05", 0.0)
    assert judge_risk(known, spans, calibration=plain, stratum="en/1-10") is None  # flags of several labels
    old = unpack_ranked(pack_as_earlier(known))
    assert judge_risk(old, spans, calibration=used, stratum="en/1-10") is None
    for stratum in ("seen", "empty"):
        assert judge_risk(known, spans, calibration=used, stratum=stratum) is None
    nothing = one_unit(RankedList(("PER",), (-0.1,), ((),), True), floor=FLOOR)
    for unknown in (None, ErrorRow(0, 0)):
        assert judge_risk(nothing, unknown, calibration=used, stratum="en/1-10") is None
    missed = judge_risk(nothing, ErrorRow(1, 0, missing=(0.0,)), calibration=used, stratum="en/1-10")
    assert missed is not None
    assert missed.loss == 1.0
    assert risk_flags(RankedList(("PER",), (), (), True), 0.1) == []
    assert judge_risk(RankedText((), FLOOR), spans, calibration=used, stratum="en/1-10") is not None


TODAY, NOW = date(2026, 5, 4), datetime(2026, 5, 4, 12, tzinfo=UTC)


class Counters:
    """A project whose labels are judged, one after the other."""

    def __init__(self, store: Store) -> None:
        self.store = store
        with store.write() as session:
            self.project = ensure_project(session, "1.1").id
            self.model = ensure_model(session, "m", "ab", classes=["PER"]).id
            draw = Draw("uniform", 0.5, 1.0, blind=True)
            fresh = [NewTask(str(i), f"text {i}", "en", 2, draw) for i in range(3)]
            self.tasks = [task.id for task in ensure_tasks(session, self.project, fresh)]

    def judge(self, number: int, loss: float, **changes: object) -> None:
        risk = JudgedRisk("all", 300, "own", "0.05", loss)
        judged = Judged(
            self.tasks[number], self.model, self.project, 1, 3, TODAY, "blind", "en/1-10", "en/*", 99, "0.1", "own",
            covered=True, shown=True, accepted=True, is_open=False, size=1, risk=risk,
        )  # fmt: skip
        with self.store.write() as session:
            record_judgement(session, replace(judged, **changes))  # type: ignore[arg-type]

    def rows(self) -> list[CoverageRow]:
        with self.store.read() as session:
            return coverage_rows(session, self.project, model_id=self.model, scope=RISK)


def test_losses_are_counted_and_taken_back(store: Store) -> None:
    counters = Counters(store)
    for number, loss in enumerate((0.0, 1 / 3, 2 / 7)):
        counters.judge(number, loss)
    [row] = counters.rows()
    assert (row.name, row.pool, row.n, row.alpha, row.guarantee, row.kind) == (
        "all", "all", 300, "0.05", "own", "blind",
    )  # fmt: skip
    assert (row.tasks, row.total, row.covered) == (3, 3, 1)
    assert row.size == round(MILLION / 3) + round(MILLION * 2 / 7)
    counters.judge(1, 1 / 3)  # the same again
    assert counters.rows() == [row]
    counters.judge(1, 0.0)  # the label was put right
    [row] = counters.rows()
    assert (row.total, row.covered, row.size) == (3, 2, round(MILLION * 2 / 7))
    counters.judge(2, 2 / 7, kind="assisted")
    assert [(row.kind, row.total, row.size) for row in counters.rows()] == [
        ("assisted", 1, round(MILLION * 2 / 7)),
        ("blind", 2, 0),
    ]
    counters.judge(0, 0.0, risk=None)
    assert sum(row.total for row in counters.rows()) == 2


def test_a_changed_label_takes_its_loss_back_with_its_row(store: Store) -> None:
    counters = Counters(store)
    with store.write() as session:
        label = record_annotation(session, counters.tasks[0], AnnotationRecord(1, NOW, (TextSpan(0, 1, "PER"),)))[
            0
        ].label
        assert label is not None
        record_scores(
            session, counters.project, model_id=counters.model, task_id=counters.tasks[0],
            label_revision=label.revision, stratum="en/1-10", evidence="blind",
            scores=SequenceScores(1.0, 1.0, 0.5), errors=ErrorRow(1, 0, missing=(0.2,)),
        )  # fmt: skip
    counters.judge(0, 1.0)
    assert [row.size for row in counters.rows()] == [MILLION]
    with store.write() as session:
        later = AnnotationRecord(1, NOW + timedelta(minutes=1), ())
        record_annotation(session, counters.tasks[0], later)
    assert counters.rows() == []


def risk_row(total: int, lost: float, **changes: object) -> CoverageRow:
    row = CoverageRow(
        RISK, "all", "blind", 3, "all", 300, "0.05", "own", total, total, 0, 0, 0, 0, 0, 0, round(MILLION * lost)
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def test_clearly_more_errors_than_promised_raise_an_alarm() -> None:
    [alarm] = find_alarms([risk_row(400, 80.0)])
    assert (alarm.kind, alarm.stratum) == ("risk", "")
    assert alarm.value == pytest.approx(0.2)
    assert "20.0% of a task's entities were wrong or missing in 400 tasks" in alarm.message
    assert "at a promise of 5.0%" in alarm.message
    # Over versions and pools together.
    assert find_alarms([risk_row(200, 40.0), risk_row(200, 40.0, version_id=4, name="en", pool="en")])
    for quiet in (
        risk_row(400, 20.0),
        risk_row(400, 30.0),  # within what an unlucky level explains
        risk_row(10, 2.0),
        risk_row(400, 80.0, kind="assisted"),
        risk_row(400, 80.0, kind="excluded"),
        risk_row(400, 80.0, guarantee="borrowed"),
        risk_row(400, 80.0, guarantee="none"),
        risk_row(400, 80.0, scope="stratum", guarantee="borrowed"),
        risk_row(400, 80.0, alpha="0.2"),
    ):
        assert find_alarms([quiet]) == [], quiet


def test_each_promise_has_its_own_part_of_the_error() -> None:
    wrong, right = risk_row(400, 80.0, alpha="0.05"), risk_row(400, 80.0, alpha="0.3", version_id=9)
    assert [each.kind for each in find_alarms([right, wrong])] == ["risk"]
    later = replace(wrong, version_id=12)
    assert [each.kind for each in find_alarms([right, later])] == ["risk"]  # also as the second promise


@pytest.mark.parametrize("n", [40, 200])
def test_false_alarms_are_rare_when_levels_are_fitted(n: int) -> None:
    """Levels are fitted on n labels, then labels come and are looked at after each: under the promise, few alarms."""
    rng = np.random.default_rng(n)
    streams, length, often = 300, 400, 0.4
    looks = np.unique(np.geomspace(10, length, 7).astype(int))
    alarms = 0
    for _ in range(streams):
        at = np.flatnonzero(rng.random(n) < often)
        levels, false = rng.random(at.size), np.zeros(at.size, np.bool_)
        level = control_risk(ErrorRows(np.ones(n, np.int64), np.zeros(n, np.int64), None, at, levels, false), "0.1")
        # An error is left behind where the level at which it is seen lies below the rule's.
        wrong = np.cumsum((rng.random(length) < often) & (rng.random(length) < level))
        row = risk_row(0, 0.0, n=n, alpha="0.1")
        alarms += any(
            find_alarms([replace(row, tasks=int(k), total=int(k), size=MILLION * int(wrong[k - 1]))]) for k in looks
        )
    assert alarms <= 0.05 * streams


def test_real_failures_are_found() -> None:
    """The same with a level that was fitted before texts changed: three times the errors."""
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(40):
        wrong = int((rng.random(400) < 0.3).sum())
        found += bool(find_alarms([risk_row(400, float(wrong), n=200, alpha="0.1")]))
    assert found == 40


def test_an_unlucky_level_explains_less_the_more_labels_it_rests_on() -> None:
    bounds = [unlucky_risk(n, "0.05", error=Fraction(1, 50)) for n in (0, 19, 50, 200, 2000, 50_000)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] == 1.0
    assert 0.05 < bounds[-1] < 0.06


def test_the_interval_of_losses_holds_the_mean_and_takes_parts_of_tasks() -> None:
    low, high = loss_interval({"total": 200, "size": round(10.5 * MILLION)})
    assert low < 10.5 / 200 < high
    rounded = (loss_interval({"total": 200, "size": k * MILLION}) for k in (10, 11))
    (least, _), (_, most) = rounded
    assert (low, high) == (least, most)


def test_the_report_tells_promised_and_measured_apart() -> None:
    rows = [
        risk_row(100, 4.0, covered=90),
        risk_row(50, 1.0, covered=48, version_id=4),
        risk_row(30, 3.0, guarantee="borrowed", version_id=0),
        risk_row(500, 9.0, kind="assisted"),
    ]
    levels = {"max_error": "0.05", "sure": False, "n_min": 100, "pools": []}
    version = VersionRecord(
        id=4, project_id=1, model_id=1, alpha="0.1", method="nc1", evidence="blind", guarantee="own",
        input_revision=1, content=b"", n=9, details={"risk": levels}, created_at=NOW,
    )  # fmt: skip
    report = flags_report(rows, version)
    assert report["promised"] == levels
    borrowed, own = report["measured"]
    assert (borrowed["guarantee"], borrowed["tasks"], borrowed["risk"]) == ("borrowed", 30, pytest.approx(0.1))
    assert (own["max_error"], own["tasks"], own["without_errors"]) == ("0.05", 150, 138)
    assert own["risk"] == pytest.approx(5 / 150)
    assert own["always_95"][0] < own["risk"] < own["always_95"][1]
    nothing = flags_report([], None)
    assert (nothing["promised"], nothing["measured"]) == (None, [])
    assert "No promise of your own yet" in nothing["advice"]
