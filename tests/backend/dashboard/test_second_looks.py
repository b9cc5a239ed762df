"""Second looks on the page and in the API: the lists with their evidence, and the word that a label is right."""

from __future__ import annotations

import math

import pytest
from flask import Flask

from backend.app import service_of
from backend.dashboard.csrf import COOKIE
from backend.store import Store
from backend.store.actions import list_actions
from backend.store.projects import find_project
from tests.backend.dashboard.test_actions import ORIGIN, PAGE, answer_question, jobs
from tests.support.populated import UID, populate


@pytest.fixture
def listed(empty_app: Flask) -> Flask:
    """Few labels: two of them are listed, one is a reference label to be checked."""
    service = service_of(empty_app)
    service.views.polled.every = 0.0
    with Store(service.settings.database_url) as store:
        populate(store, service.views.model_of, labels=6)
    return empty_app


def test_the_page_shows_both_lists_with_their_evidence(listed: Flask) -> None:
    page = listed.test_client().get(f"{PAGE}?tab=work").text
    assert "Labels that are probably wrong" in page
    assert "PER “t” (0.04 %)" in page
    assert "LOC “text” (97 %)" in page
    assert "At most 10 % of the labels on such a list are expected to be right" in page
    assert "check the strangest of those first" in page
    assert page.count(">It is right</a>") == 3
    table = listed.test_client().get(f"{PAGE}/figures/second-looks.csv").text.splitlines()
    assert table[0] == "task,label_has,model_says,least_plausible_word,its_label_s_probability,p_value"
    assert [line.split(",")[0] for line in table[1:]] == ["1000", "1001"]


def test_the_api_gives_the_lists(listed: Flask) -> None:
    client = listed.test_client()
    answer = client.get(f"/api/v1/projects/{UID}/second-looks?limit=1").get_json()
    assert [each["task"] for each in answer["listed"]] == ["1000"]
    assert [each["task"] for each in answer["check"]] == ["1002"]
    entry = answer["listed"][0]
    assert entry["p_value"] == pytest.approx(1 / 37)
    assert entry["probability"] == 0.0004
    assert entry["implausible"] == [{"start": 0, "end": 1, "label": "PER", "text": "t", "probability": 0.0004}]
    assert entry["instead"][0]["label"] == "LOC"
    assert entry["spans"] == [{"start": 0, "end": 1, "label": "PER", "text": "t"}]
    assert client.get(f"/api/v1/projects/{UID}/second-looks?limit=0").status_code == 400
    assert client.get("/api/v1/projects/nothing/second-looks").status_code == 404


def test_saying_that_a_label_is_right_takes_it_off_the_list(listed: Flask) -> None:
    client = listed.test_client()
    answer = answer_question(client, "keep", "?task=1000")
    assert answer.status_code == 303
    assert answer.headers["Location"].endswith("?done=keep#done")
    assert ("second-looks", "queued") in jobs(listed)
    left = client.get(f"/api/v1/projects/{UID}/second-looks").get_json()
    assert [each["task"] for each in left["listed"]] == ["1001"]
    with service_of(listed).reads.read() as session:
        project = find_project(session, UID)
        assert project is not None
        done = list_actions(session, project.id)[0]
    assert (done.action, done.details["task"], done.details["revision"]) == ("keep", "1000", 1)
    assert "found a label right at a second look" in client.get(f"{PAGE}?tab=running").text


def test_only_labels_that_were_judged_can_be_kept(listed: Flask) -> None:
    client = listed.test_client()
    client.get(PAGE)
    token = client.get_cookie(COOKIE, path="/dashboard")
    assert token is not None
    for task, status in (("", 400), ("a\nb", 400), ("x" * 300, 400), ("999999", 404)):
        data = {"token": token.value, "task": task}
        assert client.post(f"{PAGE}/actions/keep", data=data, headers=ORIGIN).status_code == status
    assert client.post(f"{PAGE}/actions/keep", data={"task": "1000"}, headers=ORIGIN).status_code == 403
    still = client.get(f"/api/v1/projects/{UID}/second-looks").get_json()
    assert len(still["listed"]) == 2


def test_without_judged_labels_the_page_says_what_is_needed(listed: Flask) -> None:
    page = listed.test_client().get("/dashboard/projects/8?tab=work").text
    assert "No label has been checked yet" in page
    answer = listed.test_client().get("/api/v1/projects/8/second-looks").get_json()
    assert (answer["listed"], answer["check"], answer["reference"]) == ([], [], 0)
    assert math.isclose(float(answer["fdr"]), 0.1)
