"""Conformal prediction for linear-chain taggers: exact inference, thresholds and prediction sets.

Needs numpy and numba only: no torch, no server, no database.
"""
