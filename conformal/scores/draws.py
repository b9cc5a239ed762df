"""Draws that are fixed by names: the same for a task whenever it is asked about."""

from __future__ import annotations

import hashlib


def hash_u(secret: str, *parts: str | int) -> float:
    """Return a uniform draw in [0, 1) fixed by its arguments: BLAKE2b of their lengths and texts, 53 bits.

    >>> hash_u("s", 7, 12, "boundary") == hash_u("s", 7, 12, "boundary") != hash_u("s", 71, 2, "boundary")
    True
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (secret, *parts):
        text = str(part).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return float((int.from_bytes(digest.digest(), "big") >> 11) / 2**53)


def boundary_u(secret: str, project: str | int, task: str | int) -> float:
    """Return a task's boundary draw: the same over all threshold versions (METHODS 4.6)."""
    return hash_u(secret, project, task, "boundary")
