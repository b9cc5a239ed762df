from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.flag_rule import RiskRule
from backend.errors import InvalidSetting
from backend.settings import Settings, load_settings
from conformal.scores import METHODS


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(f"SURESPAN_{field.upper()}", raising=False)


def test_defaults_are_those_of_the_documentation() -> None:
    settings = load_settings()
    assert settings.database_url == "sqlite:///.surespan/surespan.db"
    assert (settings.alpha, settings.method, settings.n_min) == ("0.05", "nc1", 100)
    assert (settings.max_shown, settings.max_sequences, settings.text_retention) == (5, 10_000, None)


def test_the_environment_is_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_ALPHA", "0.10")
    monkeypatch.setenv("SURESPAN_TEXT_RETENTION", "30")
    monkeypatch.setenv("SURESPAN_SERVED_RETENTION", "")
    settings = load_settings()
    assert (settings.alpha, settings.text_retention, settings.served_retention) == ("0.1", 30, None)
    assert load_settings(alpha="0.2").alpha == "0.2"
    assert load_settings().risk_rule == RiskRule("0.05")
    assert load_settings(max_error="0.020", max_error_sure=True).risk_rule == RiskRule("0.02", sure=True)
    assert load_settings(flags="sets", max_error="0.02").risk_rule is None
    for name in METHODS:
        assert load_settings(method=name).method == name
    assert load_settings(method="joint+nc2/conditional+nc1").method == "joint+nc2/conditional+nc1"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ALPHA", "1", "SURESPAN_ALPHA: expected a decimal number between 0 and 1, both excluded, .*, got '1'"),
        ("ALPHA", "5%", "SURESPAN_ALPHA: expected a decimal number .*, got '5%'"),
        ("ALPHA", "nan", "SURESPAN_ALPHA: expected a decimal number .*, got 'nan'"),
        ("ALPHA", "", "SURESPAN_ALPHA: expected a decimal number .*, got ''"),
        ("MAX_ERROR", "0", "SURESPAN_MAX_ERROR: expected a decimal number between 0 and 1, both excluded, .*, got '0'"),
        ("MAX_ERROR", "1", "SURESPAN_MAX_ERROR: expected a decimal number between 0 and 1, both excluded, .*, got '1'"),
        ("MAX_ERROR", "abc", "SURESPAN_MAX_ERROR: expected a decimal number .*, got 'abc'"),
        ("MAX_ERROR_SURE", "often", "SURESPAN_MAX_ERROR_SURE: expected true or false, got 'often'"),
        ("FLAGS", "foo", "SURESPAN_FLAGS: expected 'risk' or 'sets', got 'foo'"),
        ("MAX_SHOWN", "0", "SURESPAN_MAX_SHOWN: expected a whole number of at least 1, got '0'"),
        ("MAX_SHOWN", "many", "SURESPAN_MAX_SHOWN: expected a whole number of at least 1, got 'many'"),
        ("N_MIN", "1.5", "SURESPAN_N_MIN: expected a whole number of at least 1, got '1.5'"),
        ("TEXT_RETENTION", "0", "SURESPAN_TEXT_RETENTION: expected a whole number from 1 to 36500, got '0'"),
        ("TEXT_RETENTION", "99999", "SURESPAN_TEXT_RETENTION: expected a whole number from 1 to 36500, got '99999'"),
        ("BLIND", "-0.5", "SURESPAN_BLIND: expected a number from 0 to 1, got '-0.5'"),
        ("AUDIT_SHARE", "2", "SURESPAN_AUDIT_SHARE: expected a number from 0 to 1, got '2'"),
        ("AUDIT_SHARE", "nan", "SURESPAN_AUDIT_SHARE: expected a number from 0 to 1, got 'nan'"),
        ("SYNC_EVERY_MINUTES", "-1", "SURESPAN_SYNC_EVERY_MINUTES: expected a number of at least 0, got '-1'"),
        ("REFIT_EVERY_MINUTES", "0", "SURESPAN_REFIT_EVERY_MINUTES: expected a number above 0, got '0'"),
        ("MODEL_WAIT", "601", "SURESPAN_MODEL_WAIT: expected a number above 0, at most 600, got '601'"),
        ("REFIT_EVERY_LABELS", "0", "SURESPAN_REFIT_EVERY_LABELS: expected a whole number of at least 1, got '0'"),
        ("INT8", "maybe", "SURESPAN_INT8: expected true or false, got 'maybe'"),
        ("DEVICE", "tpu", "SURESPAN_DEVICE: expected auto, cpu, cuda, cuda:0 and so on, or mps, got 'tpu'"),
        ("METHOD", "no such!", "SURESPAN_METHOD: expected a method among nc1, .*integrated.*, got 'no such!'"),
        ("METHOD", "nc1/nc9", "SURESPAN_METHOD: expected a span method after '/' among nc1, .*, got 'nc1/nc9'"),
        ("DATABASE_URL", "mysql://h/d", "SURESPAN_DATABASE_URL: expected sqlite:///.* or postgresql://"),
        ("DATABASE_URL", "sqlite://", "SURESPAN_DATABASE_URL: expected the path of a file"),
    ],
)
def test_a_bad_value_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str) -> None:
    monkeypatch.setenv(f"SURESPAN_{name}", value)
    with pytest.raises(InvalidSetting, match=f"^{expected}"):
        load_settings()


def test_names_that_others_know_are_read_without_our_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PORT": "9191", "THREADS": "4", "BASIC_AUTH_USER": "ann", "LOG_LEVEL": "WARNING"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BASIC_AUTH_PASS", "")
    settings = load_settings()
    assert (settings.port, settings.threads, settings.log_level) == (9191, 4, "warning")
    assert (settings.basic_auth_user, settings.basic_auth_pass) == ("ann", None)
    assert load_settings(port=1).port == 1
    monkeypatch.setenv("LOG_LEVEL", "loud")
    with pytest.raises(InvalidSetting, match=r"^LOG_LEVEL: expected debug, info, warning or error, got 'loud'"):
        load_settings()


def test_a_model_is_looked_for_in_the_directory_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("MODEL_DIR", str(tmp_path))
    assert load_settings(model="mine").model == str(tmp_path / "mine")
    assert load_settings(model="other").model == "other"
    assert load_settings(model=str(tmp_path)).model == str(tmp_path)
    assert load_settings().model is None


def test_passwords_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_DATABASE_URL", "oracle://ann:hunter2@h/d")
    with pytest.raises(InvalidSetting) as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


def test_reading_settings_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load_settings()
    assert list(tmp_path.iterdir()) == []


def test_every_number_says_its_range_and_takes_its_bounds() -> None:
    """What is expected is right for the type: a value at a bound is taken, one beyond it is refused with the range."""
    properties = Settings.model_json_schema(by_alias=False)["properties"]
    seen = 0
    for name, schema in properties.items():
        kind = next((each for each in schema.get("anyOf", ()) if each["type"] != "null"), schema)
        if kind.get("type") not in {"integer", "number"}:
            continue
        word = "a whole number" if kind["type"] == "integer" else "a number"
        for bound, beyond in (("minimum", -1), ("maximum", 1)):
            if bound in kind:
                seen += 1
                load_settings(**{name: kind[bound]})
                with pytest.raises(InvalidSetting, match=rf": expected {word} (from|of at least|above) \S+") as refused:
                    load_settings(**{name: kind[bound] + beyond})
                assert f" {kind[bound]}" in str(refused.value)
    assert seen > 20
