"""A Label Studio project wired to this service, and unwired again.

What is changed is written down before it is changed, with what was there before, so that `disconnect` can take back
exactly that: a field that someone has changed since is left as it is. Connecting twice changes nothing the second
time. Everything is asked of the server, nothing is assumed: which backend there is, which version it answers, whether
Label Studio made the webhook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from backend.calibration.order import declare_shuffled, record_order, record_sampling
from backend.domain.records import ProjectRecord
from backend.domain.streams import Order
from backend.domain.target import Target
from backend.errors import LabelStudioError
from backend.jobs.kinds import queue_publish
from backend.labelstudio.client import Json, LabelStudio, project_uid
from backend.labelstudio.config import parse_config
from backend.labelstudio.editing import add_flag, show_difference, with_paragraph
from backend.labelstudio.payloads import SECRET_HEADER, read_moment
from backend.labelstudio.tabs import default_tab, tabs_for
from backend.settings import Settings
from backend.store import Store
from backend.store.projects import ensure_project
from backend.store.sampling import is_shuffled
from backend.store.state import CONNECTION, ensure_salt, get_state, update_state

UNIFORM, UNCERTAINTY, SEQUENTIAL = "Uniform sampling", "Uncertainty sampling", "Sequential sampling"
SAMPLING = {"uniform": UNIFORM, "uncertainty": UNCERTAINTY}

PARAGRAPH = (
    '<p class="surespan"><b>Blank tasks are intentional.</b> Some tasks come without any suggestion: they are drawn at '
    "random to check the suggestions of the others (before a model has learnt the labels, all "
    "tasks do). Please label them from scratch, as carefully as the rest. In other "
    "tasks the best labeling is filled in, and a span marked “Needs review” could carry a label other than the one "
    "shown: confirm it or correct it; the mark itself need not be removed.</p>"
)

SSRF_HINT = (
    "Label Studio refuses addresses in local and private networks by default: start it with "
    "USE_DEFAULT_BANNED_SUBNETS=false and USER_ADDITIONAL_BANNED_SUBNETS=169.254.0.0/16"
)

Ask = Callable[[str], bool]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Wishes:
    """What the project lead asked for."""

    backend_url: str
    sampling: str | None = None  # keep, uniform or uncertainty; None asks
    shuffled: bool | None = None
    random_order: bool = False
    flags: bool = True


@dataclass
class Connected:
    """What connecting found and did."""

    project: ProjectRecord
    number: int
    target: Target
    folded: tuple[str, ...]
    version: str
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def know_project(session: Session, remote: Json) -> ProjectRecord:
    """Return a project of Label Studio, written down with a salt if it is not known yet."""
    uid = project_uid(remote)
    project = ensure_project(session, uid, title=remote["title"], label_config=remote["label_config"])
    ensure_salt(session, project.id)
    return project


class Connector:
    """Connects one project. `ask` is given a question and answers it; `say` is told what happens."""

    def __init__(self, settings: Settings, store: Store, client: LabelStudio, *, ask: Ask, say: Say) -> None:
        self._settings, self._store, self._client = settings, store, client
        self._ask, self._say = ask, say

    def connect(self, number: int, wishes: Wishes, *, classes: tuple[str, ...]) -> Connected:
        """Wire a project whose model has these classes.

        Raises:
            InvalidLabelConfig: when the label config has no labels over a text; nothing was changed.
            LabelStudioError: when the server refuses something; what was done until then is written down, and the
                same command goes on from there.
        """
        remote = self._client.project(number)
        target = parse_config(remote["label_config"]).target(classes, control=self._settings.labels_control)
        project, state = self._open(remote)
        done = Connected(project, number, target, tuple(c for c in classes if c not in target.labels), "")
        book = _Book(self._store, project.id, state, done.changes, self._say)
        book.note("server", self._client.url)
        book.note("number", number)
        if wishes.flags:
            remote = self._add_flags(remote, target, book, done)
        remote = self._choose_order(remote, wishes, book, done)
        remote = self._instruct(remote, book)
        backend = self._register(number, wishes.backend_url, book, done)
        done.version = str(backend["model_version"] or "")
        self._hook(number, wishes.backend_url, book)
        self._prelabel(number, done.version, book)
        self._add_tabs(number, str(remote["sampling"]), book)
        self._record(project, remote, wishes)
        return done

    def _open(self, remote: Json) -> tuple[ProjectRecord, Json]:
        def work(session: Session) -> tuple[ProjectRecord, Json]:
            project = know_project(session, remote)
            return project, get_state(session, project.id, CONNECTION) or {}

        return self._store.run(work)

    def _add_flags(self, remote: Json, target: Target, book: _Book, done: Connected) -> Json:
        before = str(remote["label_config"])
        after = add_flag(before, target)
        if after == before:
            return remote
        self._say(show_difference(before, after))
        if not self._ask("Add the control that marks doubtful spans to the label config?"):
            done.notes.append("doubtful spans are not marked: the label config has no control for that")
            return remote
        changed = self._change(remote, book, "label_config", after, "added the flag control to the label config")
        done.target = parse_config(after).target(tuple(target.labels), control=target.control)
        return changed

    def _choose_order(self, remote: Json, wishes: Wishes, book: _Book, done: Connected) -> Json:
        now = str(remote["sampling"])
        wanted = now if wishes.sampling == "keep" else SAMPLING.get(wishes.sampling or "", now)
        if wishes.sampling is None and now == SEQUENTIAL and not wishes.shuffled:
            question = (
                "Tasks are given out in the order of the collection, so labels say nothing about a random task and "
                "cannot calibrate. Give tasks out at random (uniform sampling) from now on?"
            )
            wanted = UNIFORM if self._ask(question) else now
        if wanted == SEQUENTIAL and not wishes.shuffled and not self._declared(done.project):
            done.notes.append(
                "labels made in sequential order do not calibrate: use --sampling uniform, or --shuffled if the "
                "collection is in random order"
            )
        return self._change(remote, book, "sampling", wanted, f"set the sampling to {wanted!r}")

    def _declared(self, project: ProjectRecord) -> bool:
        with self._store.read() as session:
            return is_shuffled(session, project.id)

    def _instruct(self, remote: Json, book: _Book) -> Json:
        now = str(remote["expert_instruction"] or "")
        wanted = with_paragraph(now, PARAGRAPH, earlier=book.state.get("paragraph"))
        book.note("paragraph", PARAGRAPH)
        changed = self._change(
            remote, book, "expert_instruction", wanted, "explained blank tasks in the project's instruction"
        )
        return self._change(changed, book, "show_instruction", True, "had the instruction shown before labeling")

    def _change(self, remote: Json, book: _Book, name: str, wanted: object, said: str) -> Json:
        if remote.get(name) == wanted:
            return remote
        book.write(name, before=remote.get(name), after=wanted)
        changed = self._client.update_project(int(remote["id"]), **{name: wanted})
        if changed.get(name) != wanted:
            # The server may store something else than it was sent; what it stored is what we recognise later.
            book.write(name, before=remote.get(name), after=changed.get(name))
        book.did(said)
        return changed

    def _register(self, number: int, url: str, book: _Book, done: Connected) -> Json:
        auth = credentials(self._settings)
        backends = self._client.backends(number)
        mine = [each for each in backends if _same(each["url"], url)] or [
            each for each in backends if each["id"] == book.state.get("backend")
        ]
        others = [each["title"] for each in backends if each not in mine]
        if others:
            done.notes.append(
                f"the project has other backends too ({', '.join(others)}): Label Studio calls one of them"
            )
        if not mine:
            backend = self._client_call(
                lambda: self._client.create_backend(number, url=url, title="surespan", auth=auth)
            )
            book.note("backend", backend["id"])
            book.note("backend_url", url)
            book.did(f"registered the backend {url}")
        else:
            backend = mine[0]
            book.note("backend", backend["id"], unless_known=True)
            book.note("backend_url", url)
        version = backend["model_version"]
        right = (
            backend["title"] == version
            and _same(backend["url"], url)
            and backend["state"] == "CO"
            and (backend["basic_auth_user"] or "") == auth.get("basic_auth_user", "")
        )
        if not right:
            backend = self._client_call(
                lambda: self._client.update_backend(
                    int(backend["id"]), project=number, url=url, title=str(version or "surespan"), auth=auth
                )
            )
            version = next(each for each in self._client.backends(number) if each["id"] == backend["id"])[
                "model_version"
            ]
            if backend["title"] != version:  # it was not known before the credentials were right
                backend = self._client.update_backend(
                    int(backend["id"]), project=number, url=url, title=str(version), auth=auth
                )
            book.did(f"named the backend {version}")
        return backend | {"model_version": version}

    def _client_call(self, call: Callable[[], Json]) -> Json:
        try:
            return call()
        except LabelStudioError as error:
            hint = SSRF_HINT if error.status == 403 else "is `surespan serve` running, and reachable from Label Studio?"
            raise LabelStudioError(f"{error}; {hint}", status=error.status, asked=error.asked) from None

    def _hook(self, number: int, url: str, book: _Book) -> None:
        address = url.rstrip("/") + "/webhook"
        secret = self._settings.webhook_secret
        headers = {} if secret is None else {SECRET_HEADER: secret.get_secret_value()}
        if secret is None and self._settings.basic_auth_user:
            self._say("No SURESPAN_WEBHOOK_SECRET is set: /webhook refuses what Label Studio sends until there is one.")
        hooks = [each for each in self._client.webhooks(number) if _same(each["url"], address)]
        if not hooks:
            hook = self._client_call(lambda: self._client.create_webhook(number, url=address, headers=headers))
            book.did("made the webhook that Label Studio did not make")
        else:
            hook = hooks[0]
            for extra in hooks[1:]:
                self._client.delete_webhook(int(extra["id"]))
                book.did("removed a second webhook to the same address")
            kept = {key: value for key, value in hook["headers"].items() if key.lower() != SECRET_HEADER.lower()}
            wanted = kept | headers
            if hook["headers"] != wanted or not (
                hook["is_active"] and hook["send_payload"] and hook["send_for_all_actions"]
            ):
                hook = self._client.update_webhook(int(hook["id"]), url=address, headers=wanted)
                book.did("set the webhook's secret header")
        book.note("webhook", hook["id"])

    def _prelabel(self, number: int, version: str, book: _Book) -> None:
        remote = self._client.project(number)
        remote = self._change(remote, book, "show_collab_predictions", True, "turned prelabeling on")
        self._change(remote, book, "model_version", version, f"set the project's model version to {version}")

    def _add_tabs(self, number: int, sampling: str, book: _Book) -> None:
        there = self._client.views(number)
        if not there:
            # Without any tab the Data Manager makes one up that shows everything; ours would take its place.
            self._client.create_view(number, default_tab())
        known: dict[str, int] = dict(book.state.get("views") or {})
        titles = {each["data"].get("title") for each in there if each["id"] not in known.values()}
        for title, data in tabs_for(sampling).items():
            if known.get(title) in {each["id"] for each in there} or title in titles:
                continue  # it is there, perhaps changed to somebody's taste, or somebody has one of that name
            known[title] = int(self._client.create_view(number, data)["id"])
            book.note("views", dict(known))
            book.did(f"added the tab “{title}” to the Data Manager")

    def _record(self, project: ProjectRecord, remote: Json, wishes: Wishes) -> None:
        now = datetime.now(UTC)

        def work(session: Session) -> None:
            ensure_project(session, project.uid, title=remote["title"], label_config=remote["label_config"])
            if wishes.random_order:
                # The lead vouches for everything up to now; one instant before it, so that the server's word holds now.
                for at in (read_moment(str(remote["created_at"])), now - timedelta(microseconds=1)):
                    record_order(session, project.id, order=Order.UNIFORM, at=at, source="declared")
            if wishes.shuffled is not None:
                declare_shuffled(session, project.id, shuffled=wishes.shuffled)
            record_sampling(session, project.id, sampling=remote["sampling"], at=now, source="connect")
            queue_publish(session, project)

        self._store.run(work)


class _Book:
    """What was done to a project, kept in the database after every step."""

    def __init__(self, store: Store, project_id: int, state: Json, changes: list[str], say: Say) -> None:
        self._store, self._project_id = store, project_id
        self.state, self._changes, self._say = state, changes, say

    def note(self, name: str, value: object, *, unless_known: bool = False) -> None:
        """Keep a fact."""
        if self.state.get(name) == value or (unless_known and name in self.state):
            return
        self.state[name] = value
        self._save(name)

    def write(self, name: str, *, before: object, after: object) -> None:
        """Keep what a field was before our first change of it, and what we make it."""
        fields: dict[str, dict[str, object]] = self.state.setdefault("fields", {})
        known = fields.get(name)
        # Someone's own change since then is what disconnecting goes back to.
        first = known["before"] if known is not None and known["after"] == before else before
        fields[name] = {"before": first, "after": after}
        self._save("fields")

    def did(self, said: str) -> None:
        """Report a change."""
        self._changes.append(said)
        self._say(said)

    def _save(self, name: str) -> None:
        # Only what changed: a publication beside this one keeps its tabs in the same state.
        mine = self.state[name]

        def merge(kept: Json) -> Json:
            return kept | {name: (kept.get(name) or {}) | mine if isinstance(mine, dict) else mine}

        self._store.run(lambda session: update_state(session, self._project_id, CONNECTION, merge))


def credentials(settings: Settings) -> Mapping[str, str]:
    """Return the fields by which Label Studio is told how to log in to the service."""
    if not settings.basic_auth_user or settings.basic_auth_pass is None:
        return {"auth_method": "NONE"}
    return {
        "auth_method": "BASIC_AUTH",
        "basic_auth_user": settings.basic_auth_user,
        "basic_auth_pass": settings.basic_auth_pass.get_secret_value(),
    }


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")
