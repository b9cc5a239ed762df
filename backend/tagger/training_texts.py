"""Fingerprints of training texts, so that a text the model was trained on can be told from a new one.

Such texts form a stratum of their own (METHODS 5.4): the model is surer of them than its thresholds allow for.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from backend.tagger.tokens import Token, tokenize

Fingerprints = npt.NDArray[np.int64]


def fingerprint(text: str, tokens: Sequence[Token] | None = None) -> int:
    """Return 64 bits of the text's tokens, whatever its case, white space and compatibility forms.

    >>> fingerprint("L' Aquila  dorme .") == fingerprint("l'aquila dorme.")
    True
    >>> fingerprint("a b") == fingerprint("ab")
    False
    """
    if tokens is None:
        tokens = tokenize(text)
    joined = " ".join(text[start:end] for start, end in tokens)
    folded = unicodedata.normalize("NFKC", joined).casefold()
    digest = hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def fingerprints(texts: Iterable[str]) -> Fingerprints:
    """Return the distinct fingerprints of texts, sorted."""
    return np.unique(np.fromiter((fingerprint(text) for text in texts), np.int64))


def joined(known: Fingerprints, more: Fingerprints) -> Fingerprints:
    """Return the fingerprints of either, sorted.

    >>> joined(fingerprints(["a"]), fingerprints(["A", "b"])).tolist() == fingerprints(["a", "b"]).tolist()
    True
    """
    return np.union1d(known, more)


def contains(known: Fingerprints, wanted: int) -> bool:
    """Whether a sorted array holds a fingerprint.

    >>> contains(fingerprints(["a", "b"]), fingerprint("B")), contains(fingerprints([]), fingerprint("B"))
    (True, False)
    """
    at = int(np.searchsorted(known, wanted))
    return at < len(known) and int(known[at]) == wanted
