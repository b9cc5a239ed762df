"""Levels by language: who stands alone, what the others share, and what is written (METHODS 11.4 and 11.5)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidArgument, InvalidThresholds
from conformal.risk import ErrorRows, RiskLevels, TaskErrors, control_risk, fit_levels, least_tasks, upper_bound
from tests.conformal.risk.strategies import tasks


def rows(counts: dict[str, int], *, seed: int = 0) -> tuple[ErrorRows, list[str]]:
    """Tasks of several languages, each with its own difficulty, shuffled."""
    rng = np.random.default_rng(seed)
    names = [language for language, count in counts.items() for _ in range(count)]
    hard = {language: 0.2 + 0.1 * i for i, language in enumerate(counts)}
    found = []
    for language in names:
        wrong = rng.random() < hard[language]
        found.append(TaskErrors(2, 2, (float(rng.random()),) if wrong else (), ()))
    order = rng.permutation(len(names))
    return ErrorRows.of([found[i] for i in order]), [names[i] for i in order]


def test_a_language_with_enough_labels_stands_alone_and_the_others_share() -> None:
    given_rows, languages = rows({"en": 300, "de": 150, "fr": 60, "it": 30})
    fitted = fit_levels(given_rows, languages, max_error="0.05")
    assert [pool.name for pool in fitted.pools] == ["de", "en", "others"]
    own = np.array([language == "en" for language in languages])
    assert fitted.pool("en").level == control_risk(given_rows.take(own), "0.05")
    others = np.array([language in {"fr", "it"} for language in languages])
    for language in ("fr", "it", "xx"):
        pool = fitted.pool(language)
        assert (pool.name, pool.languages, pool.n) == ("others", ("fr", "it"), 90)
        assert pool.level == control_risk(given_rows.take(others), "0.05")
    losses = given_rows.take(own).losses(fitted.pool("en").level)
    assert fitted.pool("en").risk == pytest.approx(losses.mean())
    assert fitted.pool("en").bound == upper_bound(losses)


def test_all_languages_are_one_pool_until_one_stands_alone() -> None:
    for n, calibrated in ((18, False), (19, True)):
        given_rows, languages = rows({"en": 10, "de": n - 10})
        fitted = fit_levels(given_rows, languages, max_error="0.05")
        (pool,) = fitted.pools
        assert (pool.name, pool.n, pool.calibrated) == ("all", n, calibrated)
        assert (pool.level > 0) == calibrated
        assert fitted.pool("zz") is pool


def test_the_test_task_counts_in_its_own_language() -> None:
    given_rows, languages = rows({"en": 99, "de": 98, "fr": 20})
    fitted = fit_levels(given_rows, languages, max_error="0.05", n_min=100)
    assert fitted.pool("en").languages == ("en",)  # 99 and the task itself
    assert fitted.pool("de").languages == ("de", "en", "fr")  # a German task leaves English with 99
    assert fitted.pool("de").n == 217


def test_a_strict_promise_needs_more_labels_to_stand_alone() -> None:
    given_rows, languages = rows({"en": 150, "de": 120})
    fitted = fit_levels(given_rows, languages, max_error="0.005")
    assert [pool.name for pool in fitted.pools] == ["all"]
    assert fitted.pool("en").calibrated
    assert least_tasks("0.005") == 199


def test_others_that_are_too_few_flag_everything() -> None:
    given_rows, languages = rows({"en": 200, "de": 5})
    fitted = fit_levels(given_rows, languages, max_error="0.05")
    assert not fitted.pool("de").calibrated
    assert fitted.pool("de").level == fitted.pool("de").plain == 0.0
    only, spoken = rows({"en": 200})
    stranger = fit_levels(only, spoken, max_error="0.05").pool("de")
    assert (stranger.n, stranger.calibrated, stranger.risk, stranger.bound) == (0, False, None, None)


def test_a_sure_level_is_lower_and_its_bound_keeps_the_promise() -> None:
    given_rows, languages = rows({"en": 600})
    plain = fit_levels(given_rows, languages, max_error="0.05").pool("en")
    sure = fit_levels(given_rows, languages, max_error="0.05", sure=True).pool("en")
    assert sure.plain == plain.level == plain.plain > sure.level > 0
    assert sure.bound is not None
    assert plain.bound is not None
    assert sure.bound <= 0.05 < plain.bound
    few, spoken = rows({"en": 40})
    assert not fit_levels(few, spoken, max_error="0.05", sure=True).pool("en").calibrated
    assert fit_levels(few, spoken, max_error="0.05").pool("en").calibrated


def test_heavy_weights_need_more_labels() -> None:
    given_rows, languages = rows({"en": 30})
    weight = np.array([10.0] + [1.0] * 29)
    weighted = ErrorRows(
        given_rows.entities, given_rows.best, weight, given_rows.task, given_rows.level, given_rows.false
    )
    assert fit_levels(given_rows, languages, max_error="0.05").pool("en").calibrated
    assert not fit_levels(weighted, languages, max_error="0.05").pool("en").calibrated


@given(tasks, st.booleans(), st.sampled_from(["0.3", "0.1"]), st.data())
def test_levels_survive_json(given_tasks: list[TaskErrors], sure: bool, eps: str, data: st.DataObject) -> None:
    many = given_tasks * 5
    languages = [data.draw(st.sampled_from(["en", "de"])) for _ in given_tasks] * 5
    fitted = fit_levels(ErrorRows.of(many), languages, max_error=eps, sure=sure, n_min=10)
    text = json.dumps(fitted.to_dict(), allow_nan=False, sort_keys=True)
    assert RiskLevels.from_dict(json.loads(text)) == fitted
    again = fit_levels(ErrorRows.of(many), languages, max_error=eps, sure=sure, n_min=10)
    assert json.dumps(again.to_dict(), sort_keys=True) == text


def test_what_cannot_be_read_is_said() -> None:
    given_rows, languages = rows({"en": 30})
    written = fit_levels(given_rows, languages, max_error="0.1").to_dict()
    broken: list[dict[str, object]] = [
        {},
        {**written, "pools": []},
        {**written, "pools": [{**written["pools"][0], "level": -1}]},
        {**written, "pools": [{**written["pools"][0], "level": "nan"}]},
        {**written, "max_error": "2"},
        {**written, "pools": 3},
    ]
    for value in broken:
        with pytest.raises(InvalidThresholds, match="expected"):
            RiskLevels.from_dict(value)
    with pytest.raises(InvalidArgument, match="language for each of 30 tasks, got 1"):
        fit_levels(given_rows, ["en"], max_error="0.1")
    with pytest.raises(InvalidArgument, match="n_min of at least 1"):
        fit_levels(given_rows, languages, max_error="0.1", n_min=0)
