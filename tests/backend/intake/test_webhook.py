"""A webhook that was switched off: switched on again, but not against the will of whoever switches it off."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from backend.intake.webhook import keep_switched_on
from backend.labelstudio.client import LabelStudio
from backend.store import Store
from backend.store.projects import ensure_project, find_project
from backend.store.state import CONNECTION, SYNC, get_state, set_state


class Server:
    """The one webhook of a project, as the client sees it."""

    def __init__(self) -> None:
        self.hook: dict[str, Any] | None = {"id": 3, "url": "http://here/webhook", "is_active": True}

    def webhooks(self, project: int) -> list[dict[str, Any]]:
        assert project == 7
        return [] if self.hook is None else [self.hook]

    def switch_on_webhook(self, number: int, *, url: str) -> None:
        assert self.hook is not None
        assert (number, url) == (3, self.hook["url"])
        self.hook["is_active"] = True


@pytest.fixture
def server() -> Server:
    return Server()


def test_it_is_switched_on_once_and_then_left_to_whoever_keeps_it_off(store: Store, server: Server) -> None:
    def look() -> bool:
        return keep_switched_on(store, cast("LabelStudio", server), project)

    def switch_off() -> None:
        assert server.hook is not None
        server.hook["is_active"] = False

    store.run(lambda session: ensure_project(session, "7.1"))
    with store.read() as session:
        project = find_project(session, "7.1")
    assert project is not None
    switch_off()
    assert not look(), "what nobody connected is nobody's business"
    store.run(lambda session: set_state(session, project.id, CONNECTION, {"webhook": 3}))
    assert look()
    assert not look(), "it is on, and was seen on"
    switch_off()
    assert [look() for _ in range(3)] == [False] * 3, "somebody means it"
    assert server.hook is not None
    server.hook["is_active"] = True
    assert not look()
    with store.read() as session:
        sync = get_state(session, project.id, SYNC) or {}
    ago = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    store.run(lambda session: set_state(session, project.id, SYNC, sync | {"switched_on_at": ago}))
    switch_off()
    assert not look(), "it was not seen on since"
    server.hook["is_active"] = True
    assert not look()
    switch_off()
    assert look(), "another outage"
    server.hook = None
    assert not look(), "what was deleted is not made again"
