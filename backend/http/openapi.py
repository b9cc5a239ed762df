"""The OpenAPI document of the service, written by hand and held to what the routes do by tests."""

from __future__ import annotations

from typing import Any

from backend import __version__
from backend.labelstudio.payloads import SECRET_HEADER

Schema = dict[str, Any]


def document() -> Schema:
    """Return the document."""
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "Surespan",
            "version": __version__,
            "description": "Label Studio's backend contract, and the sets behind it.",
        },
        "paths": _contract() | _own(),
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "secret": {"type": "apiKey", "in": "header", "name": SECRET_HEADER},
            },
            "schemas": {"Problem": _PROBLEM, "Set": _SET, "Job": _JOB},
        },
        "security": [{"basic": []}],
    }


def _contract() -> Schema:
    routes = _routes()
    routes["/health"]["get"]["security"] = []
    routes["/webhook"]["post"]["security"] = [{"basic": []}, {"secret": []}]
    return routes


def _routes() -> Schema:
    project = {"type": "string", "minLength": 1, "maxLength": 100, "description": "<id>.<created timestamp>"}
    return {
        "/health": {
            "get": _get("Whether the process answers, and its model's state.", _object(status=_TEXT, model=_TEXT))
        },
        "/setup": {
            "post": _post(
                "The version that predictions carry now.",
                _object(["project", "schema"], project=project, schema=_TEXT),
                _object(["model_version"], model_version=_TEXT),
            )
        },
        "/predict": {
            "post": _post(
                "Predictions, one entry per task in order.",
                _object(["tasks"], tasks=_list({}), project=project, label_config=_TEXT, params={"type": "object"}),
                _object(["results"], results=_list({})),
            )
        },
        "/webhook": {
            "post": _post(
                "Stores an event.",
                _object(["action"], action=_TEXT),
                _object(["status", "event"], status=_TEXT, event=_WHOLE),
            )
        },
        "/train": {
            "post": _post(
                "Queues a refit.",
                _object(["project"], project=project),
                _object(["status", "job", "training"], status=_TEXT, job=_TEXT, training=_TEXT),
            )
        },
        "/versions": {
            "get": _get(
                "Versions in use, newest first.",
                _object(["versions"], versions=_list(_TEXT)),
                [_query("project", _TEXT)],
            )
        },
        "/validate": {
            "post": _post(
                "What a label config lets the model say.",
                _object(["config"], config=_TEXT),
                _object(["status"], status=_TEXT),
            )
        },
        "/metrics": {
            "get": {
                "summary": "Metrics for Prometheus.",
                "responses": {"200": {"description": "Metrics.", "content": {"text/plain": {"schema": _TEXT}}}}
                | _FAILURES,
            }
        },
    }


def _own() -> Schema:
    uid = {
        "name": "uid",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 100},
    }
    digest = {
        "name": "hash",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9a-f]{1,64}$"},
    }
    number = {"name": "number", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}
    limit = _query("limit", {"type": "integer", "minimum": 1, "maximum": 500})
    first = _query("evidence_first", {"type": "string", "enum": ["true", "false"]})
    asked = _object(
        ["text"],
        text=_TEXT,
        language={"type": "string", "nullable": True, "minLength": 1, "maxLength": 20},
        alpha={"type": "string", "nullable": True, "description": "A decimal number between 0 and 1."},
        project={"type": "string", "minLength": 1, "maxLength": 100},
    )
    claim = _object(
        ["project", "for"],
        project={"type": "string", "minLength": 1, "maxLength": 100},
        **{"for": {"type": "string", "minLength": 1, "maxLength": 100, "description": "Who gets the tasks."}},
        limit={"type": "integer", "minimum": 1, "maximum": 500},
        minutes={"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1440, "nullable": True},
        review_order={
            "type": "boolean",
            "description": "Accepts that from now on only blind tasks of the project may set thresholds.",
        },
        evidence_first={"type": "boolean", "description": "Drawn-blind tasks before all others."},
    )
    return {
        "/api/v1/openapi.json": {"get": _get("This document.", {"type": "object"})},
        "/api/v1/sets": {"post": _post("The sets of a text.", asked, _ref("Set"))},
        "/api/v1/projects": {"get": _get("Projects, oldest first.", _object(["projects"], projects=_list(_OBJECT)))},
        "/api/v1/projects/{uid}/thresholds": {
            "get": _get(
                "Thresholds in use for a project.",
                _object(["project", "threshold_version", "thresholds"], thresholds=_list(_OBJECT)),
                [uid],
            )
        },
        "/api/v1/projects/{uid}/coverage": {
            "get": _get(
                "How often served sets contained the label.",
                _object(["project", "overall", "strata"], overall=_OBJECT, strata=_list(_OBJECT)),
                [uid],
            )
        },
        "/api/v1/projects/{uid}/monitor": {
            "get": _get(
                "Evidence, coverage, drift, gap, skips and alarms, each with what to do.",
                _object(["project", "model"], project=_TEXT, evidence=_OBJECT, coverage=_OBJECT, drift=_OBJECT),
                [uid, _query("days", _WHOLE)],
            )
        },
        "/api/v1/projects/{uid}/queue": {
            "get": _get("The same as /api/v1/queue for a project.", _QUEUE, [uid, limit, first])
        },
        "/api/v1/queue": {
            "get": _get("What to look at next, the most valuable first.", _QUEUE, [_needed("project"), limit, first])
        },
        "/api/v1/queue/claims": {
            "post": _conflicting(
                _post("Leases the next tasks to an annotator; nobody else gets them in the meantime.", claim, _CLAIMED)
            ),
            "delete": _get(
                "Gives back what an annotator has leased.",
                _object(["project", "released"], project=_TEXT, released=_WHOLE),
                [_needed("project"), _needed("for")],
            ),
        },
        "/api/v1/projects/{uid}/second-looks": {
            "get": _get(
                "Confirmed labels that are probably wrong, and reference labels to check first.",
                _object(
                    ["project", "fdr", "reference", "tested", "summary", "listed", "check"],
                    project=_TEXT,
                    fdr=_TEXT,
                    reference=_WHOLE,
                    tested=_WHOLE,
                    summary=_TEXT,
                    listed=_list(_OBJECT),
                    check=_list(_OBJECT),
                ),
                [uid, limit],
            )
        },
        "/api/v1/projects/{uid}/worth": {
            "get": _get(
                "What prelabels are worth: how good they are, what they saved, what is left, what comes next.",
                _object(["project", "milestones"], project=_TEXT, milestones=_list(_OBJECT)),
                [uid],
            )
        },
        "/api/v1/projects/{uid}/acceptance": {
            "get": _get(
                "The tasks that nobody needs to open: what the last decision allows, and what the next one needs.",
                _object(
                    ["project", "max_error", "of", "promise", "labels", "needed", "missing", "acceptable", "accepted"],
                    project=_TEXT,
                    max_error=_TEXT,
                    of=_TEXT,
                    promise=_TEXT,
                    labels=_WHOLE,
                    needed=_WHOLE,
                    missing=_TEXT,
                    acceptable=_WHOLE,
                    accepted=_WHOLE,
                    decisions=_list(_OBJECT),
                ),
                [uid, _query("max_error", _SHARE), _query("of", _OF)],
            ),
            "post": _post(
                "Queues the decision that is due, and accepting on it unless it is a dry run.",
                _object([], max_error=_SHARE, of=_OF, dry_run={"type": "boolean"}),
                _object(["project", "job"], project=_TEXT, job=_WHOLE),
            )
            | {"parameters": [uid]},
            "delete": _get(
                "Queues taking back what was accepted and nobody has touched.",
                _object(["project", "job"], project=_TEXT, job=_WHOLE),
                [uid],
            ),
        },
        "/api/v1/projects/{uid}/train": {
            "post": _get(
                "Queues the training of a model from the project's labels.",
                _object(["project", "job"], project=_TEXT, job=_WHOLE),
                [uid],
            )
        },
        "/api/v1/projects/{uid}/models": {
            "get": _get(
                "The models that were trained for a project, the newest first, and which one serves it.",
                _object(
                    ["project", "serving", "base", "models", "learning"],
                    project=_TEXT,
                    serving={"type": "string", "nullable": True},
                    base=_OBJECT,
                    models=_list(_MODEL),
                    learning=_OBJECT,
                ),
                [uid],
            )
        },
        "/api/v1/projects/{uid}/models/{hash}/promote": {
            "post": _get(
                "Lets a model serve the project, or goes back to one that did; queues what follows from that.",
                _object(["project", "hash", "version", "state"], project=_TEXT, hash=_TEXT, version=_TEXT, state=_TEXT),
                [uid, digest],
            )
        },
        "/api/v1/projects/{uid}/sync": {
            "get": _get(
                "What reconciliation and publishing last did.",
                _object(
                    ["project", "connected", "runs", "total", "publish"],
                    project=_TEXT,
                    connected={"type": "boolean"},
                    runs=_WHOLE,
                    total=_OBJECT,
                    publish=_OBJECT,
                ),
                [uid],
            )
        },
        "/api/v1/jobs": {
            "get": _get(
                "Jobs, newest first.", _object(["jobs"], jobs=_list(_ref("Job"))), [_query("project", _TEXT), limit]
            )
        },
        "/api/v1/jobs/{number}": {"get": _get("One job.", _ref("Job"), [number])},
    }


def _object(required: list[str] | None = None, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return schema | {"required": required} if required else schema


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _needed(name: str) -> Schema:
    return _query(name, {"type": "string", "minLength": 1, "maxLength": 100}) | {"required": True}


def _conflicting(operation: Schema) -> Schema:
    refused = {"409": _json("Not in the project's present state; the hint says what to send.", _ref("Problem"))}
    return operation | {"responses": operation["responses"] | refused}


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _get(summary: str, answer: Schema, parameters: list[Schema] | None = None) -> Schema:
    return {
        "summary": summary,
        "parameters": parameters or [],
        "responses": {"200": _json("Done.", answer)} | _FAILURES,
    }


def _post(summary: str, body: Schema, answer: Schema) -> Schema:
    asked = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"summary": summary, "requestBody": asked, "responses": {"200": _json("Done.", answer)} | _FAILURES}


_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_SHARE: Schema = {"type": "string", "maxLength": 20, "description": "A decimal number between 0 and 1."}
_OF: Schema = {"type": "string", "enum": ["all", "accepted"]}
_NUMBER: Schema = {"type": "number"}
_OBJECT: Schema = {"type": "object"}
_PROBLEM = _object(["error", "expected", "got", "hint"], error=_TEXT, expected=_TEXT, got=_TEXT, hint=_TEXT)
_FAILURES: Schema = {
    status: _json(meaning, _ref("Problem"))
    for status, meaning in {
        "400": "Not of the documented shape.",
        "401": "No valid credentials.",
        "403": "Not allowed from there.",
        "404": "Not found.",
        "413": "Too large.",
        "422": "Understood, but not usable.",
        "503": "Not now: the model is loading, or the database is busy.",
    }.items()
}
_SPAN = _object(["start", "end", "label", "text"], start=_WHOLE, end=_WHOLE, label=_TEXT, text=_TEXT)
_LABELING = _object(
    ["rank", "probability", "p_value", "spans"], rank=_WHOLE, probability=_NUMBER, p_value=_NUMBER, spans=_list(_SPAN)
)
_UNIT = _object(
    ["start", "end", "stratum", "pool", "n", "open", "set_size", "labelings"],
    start=_WHOLE,
    end=_WHOLE,
    stratum=_TEXT,
    pool=_TEXT,
    n=_WHOLE,
    open={"type": "boolean"},
    set_size={"type": "integer", "nullable": True},
    labelings=_list(_LABELING),
)
_SET = _object(
    [
        "text",
        "language",
        "stratum",
        "pool",
        "alpha",
        "n",
        "guarantee",
        "threshold_version",
        "model_version",
        "open",
        "set_size",
        "labelings",
        "units",
        "flags",
        "places",
        "spans",
        "promise",
    ],
    text=_TEXT,
    language=_TEXT,
    stratum=_TEXT,
    pool=_TEXT,
    alpha=_TEXT,
    n=_WHOLE,
    guarantee={"type": "string", "enum": ["own", "assisted", "borrowed", "none"]},
    threshold_version=_WHOLE,
    model_version=_TEXT,
    open={"type": "boolean"},
    set_size={"type": "integer", "nullable": True},
    set_size_log10=_NUMBER,
    labelings=_list(_LABELING),
    units=_list(_UNIT),
    flags=_OBJECT,
    places=_WHOLE,
    spans=_list(_object(["start", "end", "text", "labels", "flagged", "doubt"], labels=_list(_OBJECT))),
    promise=_TEXT,
)
_QUEUED = _object(
    ["task", "blind"],
    task=_TEXT,
    blind={"type": "boolean", "description": "An audit task: it is shown blank, and nothing else is said about it."},
    value={"type": "number", "nullable": True},
    probability={"type": "number", "nullable": True},
    set_size={"type": "integer", "nullable": True},
    open={"type": "boolean", "nullable": True},
    stratum={"type": "string", "nullable": True},
    served_at={"type": "string", "nullable": True},
    claimed_by={"type": "string", "nullable": True},
    claimed_until={"type": "string", "nullable": True},
)
_MODEL = _object(
    ["hash", "version", "state", "classes", "labels", "base", "licence", "figures", "asked_by", "why", "can_serve"],
    hash=_TEXT,
    version=_TEXT,
    state={"type": "string", "enum": ["candidate", "serving", "retired"]},
    classes=_list(_TEXT),
    labels=_WHOLE,
    labels_until={"type": "string", "nullable": True},
    base=_TEXT,
    licence=_TEXT,
    figures=_OBJECT,
    recipe=_OBJECT,
    asked_by=_TEXT,
    why=_TEXT,
    created_at=_TEXT,
    promoted_at={"type": "string", "nullable": True},
    retired_at={"type": "string", "nullable": True},
    can_serve={"type": "boolean"},
)
_DISAGREEMENT = _object(["task", "reason", "votes", "voters"], task=_TEXT, reason=_TEXT, votes=_WHOLE, voters=_WHOLE)
_CLAIMED = _object(["project", "tasks"], project=_TEXT, tasks=_list(_QUEUED))
_QUEUE = _object(
    ["project", "tasks", "disagreements"],
    project=_TEXT,
    tasks=_list(_QUEUED),
    disagreements=_list(_DISAGREEMENT),
)
_JOB = _object(
    ["id", "kind", "key", "state"],
    id=_WHOLE,
    kind=_TEXT,
    key=_TEXT,
    state={"type": "string", "enum": ["queued", "running", "done", "failed", "cancelled"]},
)
