"""Whether a task's prediction may be seen: where the streams of METHODS 8.1 come in.

The service asks a `Present` function once per task and prediction. It must answer the same for the same task for ever,
and from nothing but project and task id: what was drawn may not depend on what the model says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backend.store.types import Draw


@dataclass(frozen=True)
class Presentation:
    """The draw of a task (None: nothing is drawn in this project), and the score that stands for a blind one."""

    draw: Draw | None = None
    blind_score: float = 0.0

    @property
    def blind(self) -> bool:
        """Whether the annotator sees nothing and the set is stored as shadow."""
        return self.draw is not None and self.draw.blind


Present = Callable[[str, str], Presentation]


def show_all(project: str, task: str) -> Presentation:  # noqa: ARG001 - the signature of `Present`
    """Show every prediction and draw nothing: how a project without streams works."""
    return Presentation()
