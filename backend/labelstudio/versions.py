"""Model versions of stored predictions: which are ours, and to which threshold version they belong."""

from __future__ import annotations

import re

_SAME_WORDS = " same words"
_OURS = re.compile(rf"^(?P<base>.+@[0-9a-f]{{8}}\+cal\.\d+)(?: #\d+|{_SAME_WORDS})?$")


def ranked_version(model_version: str, rank: int) -> str:
    """Return the version that a rank is stored under.

    >>> ranked_version("m@0+cal.3", 1), ranked_version("m@0+cal.3", 2)
    ('m@0+cal.3', 'm@0+cal.3 #2')
    """
    return model_version if rank == 1 else f"{model_version} #{rank}"


def same_words_version(model_version: str) -> str:
    """Return the version of the suggestion that is no ranked labeling: words that people labelled elsewhere.

    >>> same_words_version("m@0+cal.3")
    'm@0+cal.3 same words'
    """
    return model_version + _SAME_WORDS


def base_version(model_version: object) -> str | None:
    """Return the version that a prediction of ours belongs to, whatever it is; None for one of another model.

    >>> base_version("m@01234567+cal.3 #2"), base_version("m@01234567+cal.3"), base_version("undefined")
    ('m@01234567+cal.3', 'm@01234567+cal.3', None)
    """
    match = _OURS.match(model_version) if isinstance(model_version, str) else None
    return None if match is None else match["base"]
