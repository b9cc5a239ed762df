"""Alpha as people write it: one reading for settings, requests and pages."""

from __future__ import annotations

import re
from decimal import Decimal

EXPECTED = "a decimal number between 0 and 1, both excluded, for example 0.05"
# Digits only: an exponent of a few characters can stand for millions of digits, and every use of alpha is exact.
_PLAIN = re.compile(r"0?\.[0-9]{1,18}")


def plain_alpha(text: str) -> str:
    """Return alpha as it is kept: a decimal text, because `Fraction(0.18)` is not 18/100 (METHODS 3.1).

    Raises:
        ValueError: with what was expected.

    >>> plain_alpha(" .10 ")
    '0.1'
    """
    given = text.strip()
    if not _PLAIN.fullmatch(given) or not Decimal(given):
        raise ValueError(EXPECTED)
    return f"{Decimal(given).normalize():f}"
