"""The language of a text: what the task says, else identification among the configured languages, offline.

`py3langid` reads its packaged model with numpy's `allow_pickle=False`; nothing is unpickled and nothing is fetched.
The answer depends on the text and the configured languages alone, so it may name a stratum (METHODS 5.1).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import regex

from backend.tagger.borders import or_instead
from backend.tagger.errors import TaggerError

if TYPE_CHECKING:
    from backend.tagger.identifier import CompiledIdentifier

UNDETERMINED = "und"
_TAG = regex.compile(r"([a-z]{2,3})(?:[-_][a-z0-9-_]*)?", regex.IGNORECASE)
_LETTERS = regex.compile(r"\p{L}")
_LOADING = threading.Lock()
_READ = 1_000  # characters; more say nothing new about the language
_LEAST = 0.2  # probability below which no configured language is named


def identifiable(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the languages among the tags of tasks that can be identified, sorted: `und` and many others cannot.

    >>> identifiable(["pt-BR", "en", "und", "tlh", "no language"])
    ('en', 'pt')
    """
    named = {match[1].lower() for tag in tags if (match := _TAG.fullmatch(tag.strip()))}
    return tuple(sorted(named & _all_languages())) if named else ()


@cache
def _all_languages() -> frozenset[str]:
    return frozenset(_load_identifier().labels)


def _load_identifier() -> CompiledIdentifier:
    # The library takes half a second to load its model, which texts that name their language need not wait for.
    from backend.tagger.identifier import load_identifier  # noqa: PLC0415

    return load_identifier()


@lru_cache(maxsize=8)
def _identifier_among(languages: tuple[str, ...]) -> CompiledIdentifier:
    """Return the one identifier of these languages: megabytes, which the models of many projects share."""
    identifier = _load_identifier()
    known = set(identifier.labels)
    unknown = [language for language in languages if language not in known]
    if unknown:
        raise TaggerError(f"expected languages that can be identified ({len(known)} can), got {unknown}")
    identifier.set_languages(list(languages))
    return identifier


class LanguageGuess:
    """Names the language of texts among `languages` (ISO 639-1); safe to share between threads.

    >>> LanguageGuess(["de", "en"]).of("Die Sitzung wurde gestern vertagt.")
    'de'
    >>> LanguageGuess(["de", "en"]).of("1 2 3"), LanguageGuess(["de", "en"]).of("text", field="pt-BR")
    ('und', 'pt')
    """

    def __init__(self, languages: Iterable[str]) -> None:
        self.languages = tuple(sorted(set(languages)))

    def of(self, text: str, *, field: str | None = None) -> str:
        """Return the task's own field if it is a language tag (its first part), else the identified language.

        `und` when the text has no letter, none is configured, or none of them fits.
        """
        if field is not None and (tag := _TAG.fullmatch(field.strip())):
            return tag[1].lower()
        head = text[:_READ]
        if not self.languages or not _LETTERS.search(head):
            return UNDETERMINED
        with _LOADING:
            identifier = _identifier_among(self.languages)
        unknown = (UNDETERMINED, 0.0)
        language, probability = or_instead(
            lambda: identifier.classify(head), instead=unknown, library="py3langid", text=text
        )
        return str(language) if probability >= _LEAST else UNDETERMINED
