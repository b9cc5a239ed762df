"""Who does the jobs of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backend.acceptance.jobs import run_accept, run_withdraw
from backend.calibration.model_change import run_rescore
from backend.calibration.reconsider import run_reconsider
from backend.calibration.refit import run_refit
from backend.domain.records import JobRecord
from backend.intake.reconcile import run_sync
from backend.jobs.context import WorkContext
from backend.jobs.kinds import Kind
from backend.learning.training import run_train
from backend.publish import run_publish
from backend.review.second_looks import run_second_looks
from backend.worth.measure import run_worth

Handler = Callable[[WorkContext, JobRecord], Mapping[str, Any]]
"""Does a job and returns what is kept of it; whatever it raises belongs into the job's record."""

HANDLERS: Mapping[Kind, Handler] = {
    Kind.ACCEPT: run_accept,
    Kind.RECONSIDER: run_reconsider,
    Kind.REFIT: run_refit,
    Kind.PUBLISH: run_publish,
    Kind.RESCORE: run_rescore,
    Kind.SECOND_LOOKS: run_second_looks,
    Kind.SYNC: run_sync,
    Kind.TRAIN: run_train,
    Kind.WITHDRAW: run_withdraw,
    Kind.WORTH: run_worth,
}
