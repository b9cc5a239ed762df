"""What happens where the score crosses the threshold (METHODS 4.6)."""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from conformal.quantile import Floats


class Boundary(Enum):
    """What happens where the score crosses the threshold (METHODS 4.6).

    INCLUDE and SMOOTHED are exact; the others exist for the ablation only. EARLY keeps `score < threshold`,
    FULL adds the labeling one past the threshold, PAPER adds it with the paper's probability V.
    """

    INCLUDE = "include"
    SMOOTHED = "smoothed"
    EARLY = "early"
    FULL = "full"
    PAPER = "paper"


def previous_scores(scores: npt.ArrayLike) -> Floats:
    """Return, for a ranked list's scores, that of the labeling one rank above: -inf first."""
    values = np.asarray(scores, dtype=np.float64)
    return np.concatenate([[-np.inf], values[:-1]]) if values.size else values.copy()
