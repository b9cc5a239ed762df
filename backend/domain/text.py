"""Texts as they are stored: made safe for both databases, and named by a hash."""

from __future__ import annotations

import hashlib


def plain(value: object, limit: int) -> str:
    r"""Return `value` as text that both databases store: no NUL, no lone surrogate, at most `limit` characters.

    For names and messages, not for task text (which is kept exactly, see `ExactText`).

    >>> plain("a\x00b\ud800", 10)
    'a?b?'
    """
    return str(value).replace("\x00", "?").encode("utf-8", "replace").decode("utf-8")[:limit]


def text_hash(text: str) -> bytes:
    """Return the 32 bytes that stand for the exact text, of any code points.

    >>> text_hash("Bob") == text_hash("Bob "), len(text_hash(""))
    (False, 32)
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
