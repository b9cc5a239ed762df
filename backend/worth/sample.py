"""A random sample of the collection, as the model last saw it: what expectations and what is left are read from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy.orm import Session

from backend.domain.target import Target
from backend.store.packed_lists import unpack_ranked
from backend.store.worth import count_tasks, sample_tasks
from backend.worth.counts import SpanCounts, expected_spans, no_spans, stacked

MOST = 10_000  # tasks: what a larger sample would add to an interval from hundreds of labels cannot be seen
PAGE = 500

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Sample:
    """The first tasks of the project's random order, up to `MOST`; `total` counts all that were drawn.

    `flags` is -1 where it was not kept, `expected` 0 where the model was not asked.
    """

    total: int
    complete: bool  # every task that is done or that the model has been asked about is here
    languages: tuple[str | None, ...]
    blind: Bools
    labelled: Bools
    asked: Bools
    flags: npt.NDArray[np.int64]
    expected: SpanCounts

    def __len__(self) -> int:
        return len(self.languages)

    @property
    def tasks(self) -> int:
        """How many tasks this stands for."""
        return len(self) if self.complete else max(self.total, len(self))

    def count(self, which: Bools) -> int:
        """Return how many tasks of the collection are like those that are marked."""
        return round(self.total_of(which.astype(np.float64)))

    def total_of(self, values: npt.NDArray[np.float64]) -> float:
        """Return the sum over the collection of what was read of the sample (n,)."""
        return float(values.sum()) * (self.tasks / len(self) if len(self) else 0.0)


def read_sample(
    session: Session, project_id: int, *, model_id: int, target: Target, beat: Callable[[], object], most: int = MOST
) -> Sample:
    """Read the sample; `beat` is called after each page."""
    tasks: list[tuple[str | None, bool, bool, bool, int]] = []
    rows = []
    after = (-1.0, 0)
    while len(tasks) < most:
        page = sample_tasks(session, project_id, model_id=model_id, after=after, limit=min(PAGE, most - len(tasks)))
        if not page:
            break
        after = (page[-1].order, page[-1].id)
        for each in page:
            asked, flags = each.ranked is not None, -1 if each.flags is None else each.flags
            rows.append(no_spans(target) if each.ranked is None else expected_spans(unpack_ranked(each.ranked), target))
            tasks.append((each.language, each.blind, each.labelled, asked, flags))
        beat()
    return Sample(
        total=count_tasks(session, project_id),
        complete=len(tasks) < most,
        languages=tuple(each[0] for each in tasks),
        blind=np.array([each[1] for each in tasks], dtype=bool),
        labelled=np.array([each[2] for each in tasks], dtype=bool),
        asked=np.array([each[3] for each in tasks], dtype=bool),
        flags=np.array([each[4] for each in tasks], dtype=np.int64),
        expected=stacked(rows, target),
    )
