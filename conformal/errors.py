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


class InvalidScores(ConformalError):
    """Scores or probabilities that cannot be compared: NaN, wrong shapes, rows that contradict each other."""


class EmptyCalibration(ConformalError):
    """No calibration rows where at least one is needed."""


class UnknownStratum(ConformalError):
    """A stratum that the thresholds' strata cannot produce."""


class InvalidThresholds(ConformalError):
    """Serialised thresholds that cannot be read, or that belong to another label space."""


class RankedListTooShort(ConformalError):
    """A ranked list that ends inside the set: decode further before thresholding."""
