"""Watching a running calibration: drift, live coverage, adaptive levels (METHODS 8.7 and 8.8)."""

from conformal.monitor.adaptive import AdaptiveLevel
from conformal.monitor.coverage import below_target, beta_binomial_cdf, clopper_pearson, confidence_sequence
from conformal.monitor.martingale import Jumper, Martingale, RankStream, jumper_path, online_p_values

__all__ = [
    "AdaptiveLevel",
    "Jumper",
    "Martingale",
    "RankStream",
    "below_target",
    "beta_binomial_cdf",
    "clopper_pearson",
    "confidence_sequence",
    "jumper_path",
    "online_p_values",
]
