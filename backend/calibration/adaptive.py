"""Adaptive levels per project: alpha follows the misses of audited tasks (METHODS 8.8). Off unless a project asks.

After each blind label that was judged the level moves by gamma (alpha - miss); the next refit fits for the level as it
stands then. Whatever the data do, the share of misses among audited tasks tends to alpha in the long run; after any
finite number of tasks nothing is promised, and every set fitted this way says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from sqlalchemy.orm import Session

from backend.domain.records import MonitorRecord, ProjectRecord
from backend.store.monitor import load_monitor, save_monitor
from backend.store.state import ADAPTIVE, get_state, set_state
from conformal.monitor.adaptive import AdaptiveLevel
from conformal.quantile import exact_level

LEVEL = "adaptive"  # the kind of monitor that holds the level
GAMMA = "0.005"
_LEAST, _MOST = Decimal("0.0001"), Decimal("0.9999")


def switch_adaptive(session: Session, project_id: int, *, on: bool) -> None:
    """Let a project's level follow its misses from the next refit on, or fix it again; the state is kept."""
    set_state(session, project_id, ADAPTIVE, {"on": on})


def is_adaptive(session: Session, project_id: int) -> bool:
    """Whether the project asked for it."""
    return bool((get_state(session, project_id, ADAPTIVE) or {}).get("on"))


def was_adaptive(session: Session, project_id: int) -> bool:
    """Whether the project ever asked for it: then some of its versions may be fitted for another level."""
    return get_state(session, project_id, ADAPTIVE) is not None


def follow_misses(
    session: Session, project_id: int, *, model_id: int, alpha: str, outcomes: Iterable[bool]
) -> AdaptiveLevel | None:
    """Take in whether the sets of audited tasks held their labels, in order; None while it is off."""
    seen = list(outcomes)
    if not seen or not is_adaptive(session, project_id):
        return None
    record, level = _load(session, project_id, model_id, alpha)
    for covered in seen:
        level = level.update(covered=covered)
    state = json.dumps(level.to_dict()).encode()
    revision, consumed = (0, 0) if record is None else (record.revision, record.consumed)
    saved = MonitorRecord(LEVEL, "", revision, consumed + len(seen), float(level.current), state)
    save_monitor(session, project_id, model_id=model_id, monitor=saved)
    return level


def level_of(
    session: Session, project: ProjectRecord, *, model_id: int, alpha: str
) -> tuple[str, dict[str, Any] | None]:
    """Return the level to fit for, and what is to be said about it: `alpha` and nothing, unless it is adaptive."""
    if not is_adaptive(session, project.id):
        return alpha, None
    record, level = _load(session, project.id, model_id, alpha)
    chosen = as_decimal(level)
    about = {
        "target": alpha,
        "level": chosen,
        "audited": 0 if record is None else record.consumed,
        "promise": "long-run",
    }
    return chosen, about


def as_decimal(level: AdaptiveLevel) -> str:
    """Return the level as alpha is written; at its ends sets are open (0.0001) or empty (0.9999).

    >>> state = AdaptiveLevel.start("0.05", gamma="0.005")
    >>> as_decimal(state), as_decimal(state.update(covered=False)), as_decimal(state.update(covered=True))
    ('0.05', '0.0452', '0.0502')
    """
    exact = Decimal(level.current.numerator) / Decimal(level.current.denominator)
    held = min(max(exact, _LEAST), _MOST)
    return f"{held.quantize(Decimal('0.0001'), rounding=ROUND_HALF_EVEN).normalize():f}"


def _load(session: Session, project_id: int, model_id: int, alpha: str) -> tuple[MonitorRecord | None, AdaptiveLevel]:
    record = load_monitor(session, project_id, model_id=model_id, kind=LEVEL)
    level = AdaptiveLevel.start(alpha, gamma=GAMMA)
    if record is not None:
        known = AdaptiveLevel.from_dict(json.loads(record.state))
        if known.target == exact_level(alpha):  # another target begins anew
            level = known
    return record, level
