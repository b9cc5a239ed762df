"""Label names as classes: what a person may call a label and a tagger may call a class."""

from __future__ import annotations

from collections.abc import Iterable

OUTSIDE = "O"  # what taggers call a token of no entity


def usable_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that can be classes, each once, in order: not blank, and not the name of no entity.

    >>> usable_names(["Drug", "O", " ", "Symptom", "Drug"])
    ('Drug', 'Symptom')
    """
    return tuple(dict.fromkeys(name for name in names if name.strip() and name != OUTSIDE))


def listed_names(names: Iterable[str], *, most: int = 5) -> str:
    """Return names as a list for people, the first few of many.

    >>> listed_names("abc"), listed_names("abcdefg", most=3)
    ('a, b, c', 'a, b, c and 4 more')
    """
    every = list(names)
    shown = ", ".join(every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"
