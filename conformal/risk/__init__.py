"""Flags that promise something: how many errors are left behind where nobody was asked to look (METHODS 11).

Doubts order the spans (`doubts`), errors become losses (`losses`), labelled tasks choose the level (`control`,
`levels`), bounds say how sure that is (`bounds`), and flagged spans become places and marks (`places`).
"""

from conformal.risk.bounds import (
    betting_upper,
    clopper_pearson_upper,
    hoeffding_bentkus,
    risk_is_below,
    risk_sequence,
    upper_bound,
)
from conformal.risk.control import control_risk
from conformal.risk.doubts import FLOOR, span_doubts
from conformal.risk.levels import RiskLevels, RiskPool, fit_levels, least_tasks
from conformal.risk.losses import ErrorRows, TaskErrors, find_errors
from conformal.risk.places import place_numbers, shown_marks

__all__ = [
    "FLOOR",
    "ErrorRows",
    "RiskLevels",
    "RiskPool",
    "TaskErrors",
    "betting_upper",
    "clopper_pearson_upper",
    "control_risk",
    "find_errors",
    "fit_levels",
    "hoeffding_bentkus",
    "least_tasks",
    "place_numbers",
    "risk_is_below",
    "risk_sequence",
    "shown_marks",
    "span_doubts",
    "upper_bound",
]
