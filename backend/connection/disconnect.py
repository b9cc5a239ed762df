"""A project unwired: what connecting did is taken back, as far as nobody has changed it since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backend.errors import LabelStudioError
from backend.labelstudio.client import Json, LabelStudio, project_uid
from backend.labelstudio.editing import without_paragraph
from backend.labelstudio.versions import base_version
from backend.store import Store
from backend.store.projects import find_project
from backend.store.state import CONNECTION, get_state, update_state


@dataclass
class Disconnected:
    """What disconnecting did, and what it left because someone had changed it."""

    number: int
    changes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def disconnect(store: Store, client: LabelStudio, number: int, *, say: Callable[[str], None]) -> Disconnected:
    """Take back what `connect` did to a project. Labels, thresholds and predictions stay. Doing it twice is harmless.

    Raises:
        LabelStudioError: when the server refuses something; the same command goes on from there.
    """
    remote = client.project(number)
    uid = project_uid(remote)
    with store.read() as session:
        project = find_project(session, uid)
        state = {} if project is None else get_state(session, project.id, CONNECTION) or {}
    done = Disconnected(number)

    def did(text: str) -> None:
        done.changes.append(text)
        say(text)

    _remove_backend(client, number, state, did)
    _remove_tabs(client, number, state, did)
    _restore(client, remote, state, done, did)
    if project is not None and state:
        late: Json = {}

        def clear(kept: Json) -> Json:
            late.update(views=kept.get("views"))
            return {}

        store.run(lambda session: update_state(session, project.id, CONNECTION, clear))
        _remove_tabs(client, number, late, did)  # those that a publication has made meanwhile
    return done


def _remove_backend(client: LabelStudio, number: int, state: Json, did: Callable[[str], None]) -> None:
    url = str(state.get("backend_url") or "")
    for backend in client.backends(number):
        if backend["id"] == state.get("backend"):
            url = url or str(backend["url"])
            client.delete_backend(int(backend["id"]))
            did(f"removed the backend {backend['url']}")
    address = url.rstrip("/") + "/webhook"
    for hook in client.webhooks(number):
        if hook["id"] == state.get("webhook") or (url and str(hook["url"]).rstrip("/") == address):
            client.delete_webhook(int(hook["id"]))
            did("removed the webhook")


def _remove_tabs(client: LabelStudio, number: int, state: Json, did: Callable[[str], None]) -> None:
    there = {each["id"] for each in client.views(number)}
    for title, view in (state.get("views") or {}).items():
        if view in there:
            client.delete_view(int(view))
            did(f"removed the tab “{title}”")


def _restore(client: LabelStudio, remote: Json, state: Json, done: Disconnected, did: Callable[[str], None]) -> None:
    number = int(remote["id"])
    fields: dict[str, dict[str, Any]] = dict(state.get("fields") or {})
    # The server has emptied it with the backend; what it named before may be predictions of another model.
    version = (fields.pop("model_version", None) or {}).get("before")
    if version and base_version(version) is None and not client.project(number)["model_version"]:
        fields["model_version"] = {"before": version, "after": remote["model_version"]}
    instruction = fields.pop("expert_instruction", None)
    if instruction is not None:
        now = str(remote["expert_instruction"] or "")
        wanted = instruction["before"] if now == instruction["after"] else without_paragraph(now, state["paragraph"])
        if (wanted or "") != now:
            client.update_project(number, expert_instruction=wanted or "")
            did("took our paragraph out of the instruction")
    for name, value in fields.items():
        if remote.get(name) == value["before"]:
            continue
        if remote.get(name) != value["after"]:
            done.left.append(f"{name} has been changed since, so it stays as it is")
            continue
        try:
            client.update_project(number, **{name: value["before"]})
        except LabelStudioError as error:
            if error.status != 400:
                raise
            # A label config may have become indispensable: annotations use its flag control.
            done.left.append(f"{name} stays: Label Studio no longer accepts the earlier one")
            continue
        did(f"restored {name}")
