"""Small random tasks, with ties, overlaps, duplicates and errors that nothing touches."""

from __future__ import annotations

from hypothesis import strategies as st

from conformal.risk import TaskErrors

LEVELS = (0.0, 0.05, 0.1, 0.1000001, 0.25, 0.5, 0.9, 1.0)
levels = st.sampled_from(LEVELS)
spans = st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
labelled = st.tuples(spans, st.sampled_from(["PER", "LOC"])).map(lambda pair: (*pair[0], pair[1]))


@st.composite
def task_errors(draw: st.DrawFn) -> TaskErrors:
    """Errors of a task with up to four true and four predicted spans."""
    missing = tuple(draw(st.lists(levels, max_size=3)))
    false = tuple(draw(st.lists(levels, max_size=3)))
    right = draw(st.integers(0, 2))
    return TaskErrors(right + len(missing), right + len(false), missing, false)


tasks = st.lists(task_errors(), max_size=12)
