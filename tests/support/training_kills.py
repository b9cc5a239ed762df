"""A worker that kills itself at a stage of a training: `python -m tests.support.training_kills URL MODEL STAGE`.

Without a stage it works until nothing is due. Two of them may run at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from backend.calibration import promotion
from backend.jobs.kinds import Kind
from backend.learning import choice, training
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.settings import load_settings
from backend.store import open_store
from backend.worker import worker
from backend.worker.worker import Worker

STAGES = ("training", "trained", "stored", "registered", "promoting", "promoted", "committed")


def die(*_: object) -> None:
    """End as a machine does that loses its power."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(_: Callable[..., Any]) -> Callable[..., Any]:
    """Die instead of this call."""
    return lambda *_, **__: die()


def after(call: Callable[..., Any]) -> Callable[..., Any]:
    """Die after this call."""

    def done(*arguments: Any, **options: Any) -> Any:
        made = call(*arguments, **options)
        die()
        return made

    return done


def arm(stage: str) -> None:
    """Let this process die when training comes to a stage."""
    places: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "trained": (training, "rival_of", before),
        "stored": (promotion, "keep_model", after),
        "registered": (promotion, "register_model", after),
        "promoting": (promotion, "promote_model", after),
        "promoted": (choice, "promote", after),
    }
    if stage == "committed":
        finish = worker.finish_job

        def end(session: Any, job: Any, **options: Any) -> None:
            if job.kind == Kind.TRAIN:
                die()
            finish(session, job, **options)

        worker.finish_job = end  # type: ignore[attr-defined]
        return
    if stage == "training":
        real = training.train_apart

        def train(*arguments: Any, **options: Any) -> Any:
            told = options["tell"]

            def tell(said: str, share: float) -> None:
                told(said, share)
                if share > 0.1:
                    die()

            return real(*arguments, **options | {"tell": tell})

        training.train_apart = train  # type: ignore[attr-defined]
        return
    where, name, how = places[stage]
    setattr(where, name, how(getattr(where, name)))


def main(url: str, model: str, stage: str = "") -> None:
    """Work until nothing is due, or until death."""
    if stage:
        arm(stage)
    settings = load_settings(
        database_url=url, model=model, model_wait=300, learn="auto", learn_from="nothing", n_min=5, sync_every_minutes=0
    )
    loader = ModelLoader(settings)
    loader.start()
    with open_store(url) as store:
        Worker(settings, store, loader=loader, views=Views(settings, store, loader)).drain()


if __name__ == "__main__":
    main(*sys.argv[1:])
