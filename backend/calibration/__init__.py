"""Confirmed labels to thresholds: scores, evidence, refits, and the way to a new model."""
