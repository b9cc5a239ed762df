"""The engines by name."""

from __future__ import annotations

from backend.preannotate.engine import Engine, Inline
from backend.preannotate.processes import LocalProcesses


def make_engine(name: str, jobs: int) -> Engine:
    """Return the engine of that name: `local` or `ray`.

    Raises:
        RayMissing: when Ray is asked for and is not installed.
    """
    if name == "ray":
        from backend.preannotate.cluster import RayCluster  # noqa: PLC0415 - Ray is optional

        return RayCluster(jobs)
    if jobs == 1:
        return Inline()
    return LocalProcesses(jobs)
