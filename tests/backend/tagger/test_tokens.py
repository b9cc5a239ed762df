import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backend.tagger.errors import InvalidText
from backend.tagger.tokens import Token, token_texts, tokenize

# Characters that are hard on tokenizers, mixed into arbitrary Unicode (lone surrogates included).
HARD = [
    *("\u0301", "\u200d", "\ufe0f", "👩", "👧", "🇩", "🇪", "🏽", "\r\n", "\t", "\u00a0", "\u200b", "\ufeff", "\u00ad"),
    *("ש", "ع", "日", "が", "ก", "ា", "ᄀ", "ᅡ", "\u0e33", "\U000e0067", "\ud800", "\x00"),
    *("1", ",", ".", "'", "-", "a", "Ä", " "),
]
any_text = st.one_of(
    st.text(max_size=60),
    st.lists(st.one_of(st.sampled_from(HARD), st.characters()), max_size=40).map("".join),
)


def texts(text: str) -> list[str]:
    return token_texts(text, tokenize(text))


@settings(max_examples=400)
@given(any_text)
@example("")
@example(" \u0301")
@example("e\u0301a \u0301x")
def test_tokens_are_ordered_disjoint_and_slices_of_the_text(text: str) -> None:
    tokens = tokenize(text)
    previous = 0
    for start, end in tokens:
        assert previous <= start < end <= len(text)
        previous = end
    assert token_texts(text, tokens) == [text[start:end] for start, end in tokens]


@settings(max_examples=400)
@given(any_text)
def test_no_grapheme_cluster_is_split(text: str) -> None:
    edges = {0, len(text), *(match.start() for match in regex.finditer(r"\X", text))}
    for start, end in tokenize(text):
        assert start in edges
        assert end in edges


@settings(max_examples=400)
@given(any_text)
def test_everything_visible_is_in_a_token(text: str) -> None:
    covered = {place for start, end in tokenize(text) for place in range(start, end)}
    for place, character in enumerate(text):
        if place not in covered:
            assert character.isspace() or regex.match(r"[\p{Z}\p{Cc}\p{Cf}\p{M}]", character), (place, character)


@settings(max_examples=200)
@given(st.text(alphabet="ab1,.'-éßЖ \n\r\t", max_size=40))
def test_plain_text_and_cluster_search_agree(text: str) -> None:
    # An astral character forces the search for clusters; the tokens before it must not change.
    assert tokenize(text + " 😀")[:-1] == tokenize(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\r\n\u00a0\u2003\u200b\ufeff", []),
        ("Paris-based l'Aquila don’t", ["Paris", "-", "based", "l", "'", "Aquila", "don", "’", "t"]),
        ("1,000.5 3,x 4. U2 7up", ["1,000.5", "3", ",", "x", "4", ".", "U2", "7up"]),
        ("a\u00a0b\tc\r\nd", ["a", "b", "c", "d"]),
        ("👩‍👧🇩🇪🇫🇷👍🏽!", ["👩‍👧", "🇩🇪", "🇫🇷", "👍🏽", "!"]),
        ("Zoe\u0308 nai\u0308ve", ["Zoe\u0308", "nai\u0308ve"]),
        ("שלום עולם، مرحبا", ["שלום", "עולם", "،", "مرحبا"]),
        ("東京都 で 会う", ["東", "京", "都", "で", "会", "う"]),
        ("กำลัง", ["กำ", "ลั", "ง"]),
        ("한국어 조선", ["한국어", "조선"]),
        ("Wort\u00adteil", ["Wort\u00adteil"]),
    ],
)
def test_examples(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


def test_joined_words_give_the_tokens_of_running_text() -> None:
    assert texts("l' Italia 's U.S. ( 1990 )") == texts("l'Italia's U.S.(1990)")


@pytest.mark.parametrize("unit", ["ab, ", "日本。", "a", "1,", "👩‍👧", "e\u0301", "\u0301", " ", "\r\n"])
def test_a_hundred_thousand_characters(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    tokens = tokenize(text)
    assert all(text[start:end].strip() for start, end in tokens[:1000])
    assert sum(end - start for start, end in tokens) <= len(text)


def test_only_text_is_accepted() -> None:
    with pytest.raises(InvalidText, match=r"expected text \(str\), got bytes"):
        tokenize(b"abc")  # type: ignore[arg-type]
    assert tokenize("ab") == [Token(0, 2)]
