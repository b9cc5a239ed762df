"""A Ray cluster: `map_batches` of Ray Data with a pool of actors, each of which loads the model once.

Ray replaces actors that die and runs their batches again; results that were on a lost machine are made again too. What
reaches us comes in order and once. Ray is an optional extra, imported when it is asked for.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator
from typing import Any

from backend.errors import BackendError
from backend.preannotate.engine import BATCH, Answers, Group
from backend.preannotate.recipe import Item, Recipe, predict_items
from backend.prediction.predictor import Predictor

SEGMENT = 20_000  # texts of one run of Ray Data: what this process holds, and how often the pool is started


class RayMissing(BackendError):
    """Ray was asked for and is not installed."""


class RayFailed(BackendError):
    """The cluster could not finish the work."""


class RayCluster:
    """Predicts on the cluster that RAY_ADDRESS names; without it, on one that is started on this machine.

    Args:
        jobs: actors at most; each takes one CPU of the cluster.
    """

    def __init__(self, jobs: int, *, segment: int = SEGMENT) -> None:
        self._jobs, self._segment = jobs, segment
        self._ray = _import_ray()

    def run(self, recipe: Recipe, groups: Iterator[Group], *, own: Predictor) -> Iterator[Answers]:  # noqa: ARG002
        """Yield the answers of each group, in order.

        Raises:
            RayFailed: with Ray's own reason.
        """
        ray = self._ray
        started = not ray.is_initialized()
        if started:
            os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its C++ part writes to stderr
            ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            for segment in _segments(groups, self._segment):
                answers = self._answers(recipe, [item for group in segment for item in group])
                for group in segment:
                    yield [next(answers) for _ in group]
                next(answers, None)  # nothing is left; what has come is counted
        except (ray.exceptions.RayError, _exception_of(ray)) as error:
            reason = str(error).strip().splitlines()[-1][:500] if str(error).strip() else type(error).__name__
            raise RayFailed(
                f"expected the Ray cluster to finish, got: {reason}; what was written is kept, and the same command "
                "continues"
            ) from None
        finally:
            if started:
                ray.shutdown()

    def _answers(self, recipe: Recipe, items: list[Item]) -> Iterator[Any]:
        if not items:
            return
        data = self._ray.data
        context = data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        rows = [{"n": n, "item": pickle.dumps(tuple(item))} for n, item in enumerate(items)]
        blocks = max(1, -(-len(rows) // BATCH))
        predicted = data.from_items(rows, override_num_blocks=blocks).map_batches(
            Tag,
            fn_constructor_args=(pickle.dumps(recipe),),
            batch_size=BATCH,
            batch_format="numpy",
            num_cpus=1,
            # Without limit, Ray Data restarts actors and tries their tasks again.
            compute=data.ActorPoolStrategy(min_size=1, max_size=min(self._jobs, blocks)),
        )
        expected = 0
        for row in predicted.iter_rows():
            if int(row["n"]) != expected:
                raise RayFailed(f"expected text {expected} next, got {int(row['n'])}: please report this")
            expected += 1
            yield pickle.loads(row["answer"])  # noqa: S301 - made by our own actors a moment ago
        if expected != len(items):
            raise RayFailed(f"expected {len(items)} texts back, got {expected}: please report this")


class Tag:
    """What an actor does: loads the model when it starts, then predicts batches of rows."""

    def __init__(self, recipe: bytes) -> None:
        loaded: Recipe = pickle.loads(recipe)  # noqa: S301 - sent by the process that started this actor
        self._predictor = loaded.predictor()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the answers of the texts of a batch, under their numbers."""
        items = [Item(*pickle.loads(each)) for each in batch["item"]]  # noqa: S301 - as above
        return {"n": batch["n"], "answer": [pickle.dumps(each) for each in predict_items(self._predictor, items)]}


def _segments(groups: Iterator[Group], size: int) -> Iterator[list[Group]]:
    """Collect groups of about `size` texts together; groups that ask for nothing are passed on at once."""
    segment: list[Group] = []
    count = 0
    for group in groups:
        segment.append(group)
        count += len(group)
        if count >= size or not count:
            yield segment
            segment, count = [], 0
    if segment:
        yield segment


def _import_ray() -> Any:  # noqa: ANN401 - the module, which need not be there
    try:
        import ray  # noqa: PLC0415 - large, and not everybody has it
        import ray.data  # noqa: PLC0415
        import ray.exceptions  # noqa: PLC0415
    except ImportError:
        raise RayMissing(
            "expected the package ray for --engine ray, got none: install it with pip install 'surespan[ray]', or use "
            "--engine local"
        ) from None
    return ray


def _exception_of(ray: Any) -> type[Exception]:  # noqa: ANN401 - as above
    raised: type[Exception] = getattr(ray.exceptions, "UserCodeException", ray.exceptions.RayError)
    return raised
