"""SURESPAN_METHOD in the real service: sets over HTTP, and again from the cache."""

from __future__ import annotations

import pytest

from tests.support.service import MakeApp

TEXT = "Anna Schmidt wohnt in Berlin."


@pytest.mark.parametrize(
    "name",
    ["logrank+nc1/raps+nc1", "naive+nc1/naive+nc2", "integrated", "integrated+nc1", "integrated_sidak+raps",
     "integrated_index+nc1"],
)  # fmt: skip
def test_a_method_serves(make_app: MakeApp, name: str) -> None:
    client = make_app(method=name).test_client()
    found = [client.post("/api/v1/sets", json={"text": TEXT}).json for _ in range(2)]
    assert found[0] == found[1]
    assert found[0]["labelings"]
    heuristic = name.startswith("integrated_")
    assert found[0]["guarantee"] == ("none" if heuristic else "borrowed")
    assert ("heuristic" in found[0]["promise"]) == heuristic
    assert client.get("/health").status_code == 200
