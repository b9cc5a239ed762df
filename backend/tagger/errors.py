"""Every exception `backend.tagger` raises on purpose.

A message says what was expected, what was got and what to do.
"""


class TaggerError(ValueError):
    """Base class: catch this to catch everything the tagger raises on purpose."""


class InvalidText(TaggerError):
    """Something other than text where a text was expected."""


class InvalidSpan(TaggerError):
    """A character or token span outside its text."""


class InvalidData(TaggerError):
    """A labelled file that cannot be read; the message names file and line."""


class InvalidModel(TaggerError):
    """A saved model that is missing, damaged or of another format version."""


class InvalidTraining(TaggerError):
    """Training options or data from which no model can be trained."""
