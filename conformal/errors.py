"""Every exception this package raises on purpose.

A message says what was expected, what was got and, where it helps, what to do.
"""


class ConformalError(ValueError):
    """Base class: catch this to catch everything `conformal` raises on purpose."""


class InvalidPotentials(ConformalError):
    """Emissions, transitions or constraints that no chain can be made of."""


class NoLegalLabeling(ConformalError):
    """Every labeling of the text has score minus infinity."""


class InvalidLabels(ConformalError):
    """A label, class, span or label sequence that does not fit the label space or the text."""


class InvalidArgument(ConformalError):
    """A number or option outside its documented range."""
