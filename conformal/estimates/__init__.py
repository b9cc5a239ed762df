"""Estimates people ask for: how good, how much saved, how far to go (METHODS 14).

Accuracy of the best labelings from few blind labels (`accuracy`), the effect of a prelabel on the time that a task
takes (`saving`), what people did to what was served (`edits`), agreement between annotators (`agreement`) and the work
that is left (`forecast`).
"""

from conformal.estimates.accuracy import (
    LEAST_LABELS,
    Counts,
    Estimate,
    Rates,
    estimate_errors,
    estimate_rates,
    plain_rates,
)
from conformal.estimates.agreement import Agreement, agree, krippendorff_alpha
from conformal.estimates.edits import Edits, compare_spans, count_edits
from conformal.estimates.forecast import Forecast, add_forecasts, forecast_total
from conformal.estimates.saving import IDLE_CAP, Saving, Trial, estimate_saving

__all__ = [
    "IDLE_CAP",
    "LEAST_LABELS",
    "Agreement",
    "Counts",
    "Edits",
    "Estimate",
    "Forecast",
    "Rates",
    "Saving",
    "Trial",
    "add_forecasts",
    "agree",
    "compare_spans",
    "count_edits",
    "estimate_errors",
    "estimate_rates",
    "estimate_saving",
    "forecast_total",
    "krippendorff_alpha",
    "plain_rates",
]
