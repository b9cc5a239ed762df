"""The webhook that `connect` made is kept switched on.

Label Studio may switch a webhook off by itself after too many failures; from then on no event comes, however well the
service is. Each reconciliation by the worker looks, before it asks for what was missed. Nobody can see who switched it
off; but what is off again within a day was switched off by somebody who means it.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from backend.domain.records import ProjectRecord
from backend.errors import LabelStudioError
from backend.labelstudio.client import Json, LabelStudio
from backend.store import Store
from backend.store.state import CONNECTION, SYNC, get_state, update_state

_log = logging.getLogger(__name__)
_PROOF = timedelta(days=1)  # for which it must stay on before it is switched on another time


def keep_switched_on(store: Store, client: LabelStudio, project: ProjectRecord) -> bool:
    """Switch the project's webhook on if it is off; return whether that was done.

    Once a day at most, and only if it was seen on since: what is off again sooner is left alone, and `surespan doctor`
    names it. A server that cannot be asked, or refuses, is no error here: it is tried again at the next look.
    """
    with store.read() as session:
        number = (get_state(session, project.id, CONNECTION) or {}).get("webhook")
        tried = (get_state(session, project.id, SYNC) or {}).get("switched_on_at")
    if number is None:
        return False
    try:
        hook = next((each for each in client.webhooks(int(project.key)) if each["id"] == number), None)
        if hook is None or hook["is_active"]:
            if hook is not None and tried is not None and datetime.now(UTC) - datetime.fromisoformat(tried) >= _PROOF:
                _note(store, project, None)
            return False
        if tried is not None:
            return False
        client.switch_on_webhook(int(number), url=str(hook["url"]))
        _note(store, project, datetime.now(UTC).isoformat())
    except LabelStudioError as error:
        _log.warning("the webhook could not be looked after", extra={"project": project.uid, "reason": str(error)})
        return False
    _log.warning("the webhook was switched off in Label Studio and is on again", extra={"project": project.uid})
    return True


def _note(store: Store, project: ProjectRecord, at: str | None) -> None:
    def change(value: Json) -> Json:
        return value | {"switched_on_at": at}

    store.run(lambda session: update_state(session, project.id, SYNC, change))
