import pytest

from backend.tagger.errors import TaggerError
from backend.tagger.language import LanguageGuess
from backend.tagger.readers import read_conll

NINE = ["de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru"]


@pytest.fixture(scope="module")
def guess() -> LanguageGuess:
    return LanguageGuess(NINE)


def test_languages_of_the_sample(guess: LanguageGuess, sample) -> None:  # noqa: ANN001
    texts = read_conll(sample).texts
    right = sum(guess.of(text.text) == text.language for text in texts)
    assert right >= 0.8 * len(texts)  # short sentences full of names; chance would be a ninth


@pytest.mark.parametrize("text", ["", "  \n", "12 + 3", "😀", "🇩🇪", "日本語"])
def test_undetermined(guess: LanguageGuess, text: str) -> None:
    assert guess.of(text) == "und"


@pytest.mark.parametrize(
    ("field", "expected"),
    [("pl", "pl"), (" PT-br ", "pt"), ("zh_Hans", "zh"), ("deu", "deu"), ("", "de"), ("German!", "de"), (None, "de")],
)
def test_the_tasks_field_comes_first(guess: LanguageGuess, field: str | None, expected: str) -> None:
    assert guess.of("Die Sitzung wurde gestern auf morgen vertagt.", field=field) == expected


def test_only_configured_languages_are_named() -> None:
    text = "La reunión fue aplazada hasta mañana por la tarde."
    assert LanguageGuess(["es", "it"]).of(text) == "es"
    assert LanguageGuess(["it", "pt", "it"]).of(text) in {"it", "pt", "und"}
    assert LanguageGuess([]).of(text) == "und"
    with pytest.raises(TaggerError, match="languages that can be identified"):
        LanguageGuess(["xx"]).of(text)


def test_the_same_text_has_the_same_language_every_time(guess: LanguageGuess) -> None:
    assert len({guess.of("Paris und Berlin") for _ in range(20)} | {LanguageGuess(NINE).of("Paris und Berlin")}) == 1
