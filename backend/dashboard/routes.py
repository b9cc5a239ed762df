"""`/dashboard`: the pages, their figures as CSV, the actions and the try-out."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, make_response, redirect, render_template, request, send_file, url_for
from sqlalchemy.orm import Session
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.wrappers import Response as AnyResponse

from backend.acceptance.report import default_wish
from backend.dashboard import csrf
from backend.dashboard.actions import DONE, ask, perform
from backend.dashboard.pictures import draw_file
from backend.dashboard.report import write_report
from backend.dashboard.state import model_card, order_sentence
from backend.dashboard.subject import (
    PERIOD,
    PERIODS,
    Subject,
    find_subject,
    guarantee_word,
    has_starter_of,
    header_of,
)
from backend.dashboard.summary import summarise
from backend.dashboard.tabs import TABS, figures_of, find_tab, make_figure
from backend.dashboard.tryout import try_text
from backend.errors import BackendError
from backend.http.errors import split_message, status_of
from backend.labelstudio.payloads import InvalidPayload
from backend.serving.service import Service
from backend.store.overview import ProjectSums, overview_sums, standing_alarms
from backend.store.projects import LOCAL, find_project, list_projects

HERE = Path(__file__).parent
HEADERS = {
    # No script at all: charts are drawn by the service.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    # With no-referrer, browsers send "null" as the origin of a form, which says nothing.
    "Referrer-Policy": "same-origin",
}
ASSETS = {
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}
YEAR = 31_536_000
TAB_COOKIE = "surespan_tab"  # which tab was opened last, so that the next page begins with it


def blueprint(service: Service) -> Blueprint:
    """Return the pages over a service."""
    routes = Blueprint("dashboard", __name__, url_prefix="/dashboard", template_folder="templates")
    routes.app_template_global("asset")(_asset)
    routes.app_template_global("token")(csrf.token)
    routes.before_request(_guard)
    routes.after_request(_headers)
    routes.register_error_handler(BackendError, _on_purpose)
    routes.register_error_handler(HTTPException, _of_http)

    @routes.get("")
    def overview() -> str:
        return render_template("overview.html", **_overview(service))

    @routes.get("/projects/<uid>")
    def project(uid: str) -> Response:
        with service.reads.read() as session:
            return _project_page(find_subject(service, session, uid, days=_days()))

    @routes.get("/projects/<uid>/figures/<name>.csv")
    def figure(uid: str, name: str) -> Response:
        with service.reads.read() as session:
            chosen = make_figure(find_subject(service, session, uid, days=_days()), name)
        return _file(chosen.as_csv(), f"{chosen.name}.csv", "text/csv; charset=utf-8")

    @routes.get("/projects/<uid>/figures/<name>.svg")
    def picture(uid: str, name: str) -> Response:
        with service.reads.read() as session:
            chosen = make_figure(find_subject(service, session, uid, days=_days()), name)
        if chosen.chart is None or not chosen.rows:
            raise NotFound
        return _file(draw_file(chosen), f"{chosen.name}.svg", "image/svg+xml")

    @routes.get("/projects/<uid>/report.html")
    def report(uid: str) -> Response:
        with service.reads.read() as session:
            subject = find_subject(service, session, uid, days=_days())
            return _file(write_report(subject), f"surespan-{subject.project.key}.html", "text/html; charset=utf-8")

    @routes.get("/projects/<uid>/actions/<action>", endpoint="ask")
    def ask_first(uid: str, action: str) -> str:
        with service.reads.read() as session:
            subject = find_subject(service, session, uid)
            return render_template("ask.html", subject=subject, asked=ask(subject, action, request.args))

    @routes.post("/projects/<uid>/actions/<action>", endpoint="act")
    def act(uid: str, action: str) -> AnyResponse:
        def do(session: Session) -> str:
            subject = find_subject(service, session, uid)
            perform(session, subject, action, given=request.form, who=_who())
            return subject.project.uid

        with service.writing.turn("jobs"):
            project = service.writes.run(do)
        service.views.polled.forget(project)  # this process need not wait for its next look
        return redirect(url_for("dashboard.project", uid=project, done=action, _anchor="done"), 303)

    @routes.route("/try", methods=["GET", "POST"], endpoint="tryout")
    def tryout() -> str:
        return render_template("try.html", **_try(service))

    @routes.get("/assets/<name>", endpoint="assets")
    def assets(name: str) -> Response:
        if name not in ASSETS:
            raise NotFound
        response = make_response(send_file(HERE / "static" / name, mimetype=ASSETS[name], conditional=True))
        # The address changes with the content (`asset`), so it may be kept for ever.
        response.headers["Cache-Control"] = f"private, max-age={YEAR}, immutable"
        return response

    return routes


def _guard() -> None:
    if request.method not in {"GET", "HEAD", "OPTIONS"}:
        csrf.check()
    csrf.token()


def _headers(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers[name] = value
    return csrf.keep(response)


def _file(content: str, name: str, kind: str) -> Response:
    response = Response(content, content_type=kind)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _who() -> str:
    given = request.authorization
    return (given.username if given is not None and given.username else None) or "someone on this machine"


def _days() -> int:
    raw = request.args.get("days", "")
    return int(raw) if raw.isdigit() and raw.isascii() and len(raw) < 5 and int(raw) in PERIODS else PERIOD


def _project_page(subject: Subject) -> Response:
    asked = request.args.get("tab", "")
    tab = find_tab(asked or request.cookies.get(TAB_COOKIE, ""))
    page = make_response(
        render_template(
            "project.html",
            subject=subject,
            summary=summarise(subject),
            order=order_sentence(subject),
            card=model_card(subject) if tab.with_model else None,
            tabs=TABS,
            chosen=tab,
            sections=figures_of(subject, tab),
            periods=PERIODS,
            wished=default_wish(subject.session, subject.project.id).max_error,
            done=DONE.get(request.args.get("done", "")),
        )
    )
    if asked == tab.name:
        page.set_cookie(TAB_COOKIE, tab.name, max_age=YEAR, path="/dashboard", httponly=True, samesite="Strict")
    return page


def _overview(service: Service) -> dict[str, Any]:
    since = datetime.now(UTC).date() - timedelta(days=PERIOD - 1)
    with service.reads.read() as session:
        projects = list_projects(session)
        sums = overview_sums(session, since=since, kind="blind")
        standing = standing_alarms(session)
    summaries = []
    for project in reversed(projects):
        header = header_of(service, project)
        mine = ProjectSums() if header is None else sums.get((project.id, header.hash), ProjectSums())
        version = mine.version
        alpha = service.settings.alpha if version is None else version.alpha
        summaries.append(
            {
                "uid": project.uid,
                "name": project.title or f"Project {project.key}",
                "guarantee": guarantee_word(
                    version, method=service.settings.method, starter=has_starter_of(service, project)
                ).value,
                "version": 0 if version is None else version.id,
                "target": 1 - float(alpha),
                "labels": mine.labels,
                "judged": mine.judged,
                "coverage": mine.covered / mine.judged if mine.judged else None,
                "alarms": standing.get(project.id, 0),
            }
        )
    return {"projects": summaries, "period": PERIOD, "model": service.loader.state, "error": service.loader.error}


def _try(service: Service) -> dict[str, Any]:
    given = {name: request.form.get(name, "") for name in ("text", "project", "alpha", "language")}
    with service.reads.read() as session:
        projects = list_projects(session)
        chosen = (
            find_project(session, given["project"]) if given["project"] and "\x00" not in given["project"] else None
        )
    page: dict[str, Any] = {"given": given, "projects": projects, "tried": None, "problem": None, "service": service}
    if request.method == "POST":
        uid = LOCAL if chosen is None else chosen.uid
        try:
            page["tried"] = try_text(
                service, given, project=uid, label_config=None if chosen is None else chosen.label_config
            )
        except InvalidPayload as error:
            page["problem"] = f"Expected {error.expected}, got {error.got}."
    return page


def _on_purpose(error: BackendError) -> tuple[str, int]:
    expected, got, hint = split_message(str(error))
    status = status_of(error)
    if status >= 500:
        expected, got, hint = "an answer", "none", "try again in a moment; the log of the service says why"
    return render_template("error.html", status=status, expected=expected, got=got, hint=hint), status


def _of_http(error: HTTPException) -> tuple[str, int] | HTTPException:
    status = error.code or 500
    if status < 400:
        return error
    hint = str(error.description) if status == 403 else "go back to the list of projects"
    return render_template(
        "error.html", status=status, expected="a page that exists", got=error.name, hint=hint
    ), status


@lru_cache(maxsize=8)
def _asset(name: str) -> str:
    """Return the address of an asset, with a mark that changes when its content does."""
    mark = hashlib.sha256((HERE / "static" / name).read_bytes()).hexdigest()[:12]
    return f"/dashboard/assets/{name}?v={mark}"
