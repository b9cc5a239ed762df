"""Model versions of stored predictions: which are ours, and to which threshold version they belong."""

from __future__ import annotations

import re

_OURS = re.compile(r"^(?P<base>.+@[0-9a-f]{8}\+cal\.\d+)(?: #\d+)?$")


def base_version(model_version: object) -> str | None:
    """Return the version that a prediction of ours belongs to, whatever its rank; None for one of another model.

    >>> base_version("m@01234567+cal.3 #2"), base_version("m@01234567+cal.3"), base_version("undefined")
    ('m@01234567+cal.3', 'm@01234567+cal.3', None)
    """
    match = _OURS.match(model_version) if isinstance(model_version, str) else None
    return None if match is None else match["base"]
