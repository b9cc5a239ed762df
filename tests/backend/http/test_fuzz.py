"""Whatever is sent, the answer is an answer: never a 5xx, never an acknowledged event that is not stored."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from label_studio_sdk.label_interface import LabelInterface

from backend.app import service_of
from backend.store.events import inbox_depth
from tests.support import payload_shapes as shapes
from tests.support.service import MakeApp

SOAK = 10_000  # inputs in `make soak`, over all routes
QUICK = 120

text = st.text(max_size=30) | st.sampled_from(["\x00", "\ud800", "text", "<View/>", shapes.CONFIG, "1.2", "O"])
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every node of a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@st.composite
def changed(draw: st.DrawFn, bodies: list[Any]) -> Any:
    """A body of the right shape in which up to three nodes are replaced, or taken away."""
    body = copy.deepcopy(draw(st.sampled_from(bodies)))
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(list(places(body))))
        if not path:
            return draw(values)
        node = body
        for key in path[:-1]:
            node = node[key]
        if isinstance(node, dict) and draw(st.booleans()):
            del node[path[-1]]
        else:
            node[path[-1]] = draw(values)
    return body


@st.composite
def raw(draw: st.DrawFn, bodies: list[Any]) -> bytes:
    """A body as bytes: changed JSON, any JSON, or bytes that are cut or are no JSON at all."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=60))
    data = json.dumps(draw(values if kind == 1 else changed(bodies))).encode()
    return data[: draw(st.integers(0, len(data)))] if kind == 2 else data


def predict_bodies() -> list[Any]:
    tasks = [shapes.task(i, each) for i, each in enumerate(shapes.TEXTS)]
    fixed = [shapes.region(0, 4, shapes.TEXTS[0], "Person", origin="manual")]
    return [
        shapes.predict(tasks),
        shapes.predict(tasks[:1], context={"result": fixed}),
        {"tasks": [{"id": 1, "data": {"text": "a"}}]},
    ]


BODIES: dict[str, Callable[[], list[Any]]] = {
    "/webhook": shapes.events,
    "/predict": predict_bodies,
    "/setup": lambda: [shapes.setup()],
    "/train": lambda: [{"project": shapes.PROJECT, "annotations": []}],
    "/validate": lambda: [{"config": shapes.CONFIG}],
    "/api/v1/sets": lambda: [{"text": shapes.TEXTS[0], "alpha": "0.1", "language": "de", "project": "1.2"}],
}


def check(app: Flask, path: str, body: bytes) -> bool:
    """Send a body and look at the answer; returns whether it was accepted."""
    answer = app.test_client().post(path, data=body, content_type="application/json", buffered=True)
    assert answer.status_code < 500, answer.get_data(as_text=True)
    if answer.status_code != 200:
        assert set(answer.json) == {"error", "expected", "got", "hint"}
        assert answer.json["expected"] or answer.json["got"]
        return False
    assert isinstance(answer.json, dict)
    if path == "/predict":
        check_results(json.loads(body), answer.json["results"])
    return True


def check_results(request: Any, results: list[Any]) -> None:
    assert len(results) == len(request["tasks"])
    try:
        witness = LabelInterface(request.get("label_config") or shapes.CONFIG)
    except Exception:  # noqa: BLE001 - a config that we can use and the SDK cannot has no witness
        return
    for entry in results:
        for prediction in [entry] if isinstance(entry, dict) else entry:
            found = {"result": prediction["result"], "score": prediction["score"]}
            assert witness.validate_prediction(found, return_errors=True) == []


def fuzz(app: Flask, path: str, examples: int) -> int:
    """Send many bodies to one route; returns how many were accepted."""
    accepted = 0

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(raw(BODIES[path]()))
    def run(body: bytes) -> None:
        nonlocal accepted
        accepted += check(app, path, body)

    run()
    return accepted


def stored(app: Flask) -> int:
    with service_of(app).reads.read() as session:
        return inbox_depth(session)["pending"]


def run_all(app: Flask, total: int) -> dict[str, int]:
    assert app.test_client().post("/setup", json=shapes.setup()).status_code == 200
    accepted = {path: fuzz(app, path, total // len(BODIES)) for path in BODIES}
    print(f"{total} inputs, accepted by route: {accepted}")
    assert stored(app) == accepted["/webhook"]  # every acknowledged event is there, and nothing else
    return accepted


def test_no_input_breaks_a_route(app: Flask) -> None:
    run_all(app, QUICK)


@pytest.mark.slow
def test_no_input_breaks_a_route_in_many_tries(make_app: MakeApp) -> None:
    accepted = run_all(make_app(), SOAK)
    assert all(accepted.values())  # the inputs are close enough to the shapes to get past the first check
