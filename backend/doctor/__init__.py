"""What is wrong with a set-up, and how to mend it: one module per group of checks, each makes findings."""

from backend.doctor.findings import CHECKS, Finding, State
from backend.doctor.run import diagnose

__all__ = ["CHECKS", "Finding", "State", "diagnose"]
