"""What thresholds entitle us to say: the four words that every set carries."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """What the thresholds behind a set entitle us to say about it.

    `own`: they rest on labels made without a prelabel, or on a file that the user vouches for. `assisted`: also on
    labels that confirmed or corrected a prelabel. `borrowed`: on the labels of another collection (the starter).
    `none`: on too few labels; the set is open.
    """

    OWN = "own"
    ASSISTED = "assisted"
    BORROWED = "borrowed"
    NONE = "none"

    @property
    def strength(self) -> int:
        """How much it says, for comparing: `none` least."""
        return [Guarantee.NONE, Guarantee.BORROWED, Guarantee.ASSISTED, Guarantee.OWN].index(self)
