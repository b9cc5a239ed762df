"""The webhook that `connect` made is kept switched on.

Label Studio may switch a webhook off by itself after too many failures; from then on no event comes, however well the
service is. Each reconciliation by the worker looks, before it asks for what was missed.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from backend.domain.records import ProjectRecord
from backend.errors import LabelStudioError
from backend.labelstudio.client import Json, LabelStudio
from backend.store import Store
from backend.store.state import CONNECTION, SYNC, get_state, update_state

_log = logging.getLogger(__name__)


def keep_switched_on(store: Store, client: LabelStudio, project: ProjectRecord) -> bool:
    """Switch the project's webhook on if it is off; return whether that was done.

    Once an outage: what is off again before it was seen on, somebody keeps off, or the server does not let us. That is
    left alone, and `surespan doctor` names it. A server that cannot be asked is no error here: the reconciliation that
    follows says so.
    """
    with store.read() as session:
        number = (get_state(session, project.id, CONNECTION) or {}).get("webhook")
        tried = (get_state(session, project.id, SYNC) or {}).get("switched_on_at")
    if number is None:
        return False
    try:
        hook = next((each for each in client.webhooks(int(project.key)) if each["id"] == number), None)
        if hook is None or hook["is_active"]:
            if hook is not None and tried is not None:
                _note(store, project, None)
            return False
        if tried is not None:
            return False
        _note(store, project, datetime.now(UTC).isoformat())  # first: one that cannot be kept on is tried once
        client.switch_on_webhook(int(number), url=str(hook["url"]))
    except LabelStudioError as error:
        _log.warning("the webhook could not be looked after", extra={"project": project.uid, "reason": str(error)})
        return False
    _log.warning("the webhook was switched off in Label Studio and is on again", extra={"project": project.uid})
    return True


def _note(store: Store, project: ProjectRecord, at: str | None) -> None:
    def change(value: Json) -> Json:
        return value | {"switched_on_at": at}

    store.run(lambda session: update_state(session, project.id, SYNC, change))
