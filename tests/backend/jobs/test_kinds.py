"""Each kind of job is asked for by one function, under one key, and somebody does it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from backend.domain.records import ProjectRecord
from backend.jobs import kinds
from backend.jobs.kinds import Kind, is_pending, is_running
from backend.store import Store
from backend.store.jobs import acquire_job, finish_job, list_jobs
from backend.store.projects import ensure_project
from backend.store.schema import upgrade
from backend.worker.worker import HANDLERS

ASK: dict[Kind, Callable[[Session, ProjectRecord], int]] = {
    Kind.REFIT: partial(kinds.queue_refit, reason="asked for"),
    Kind.PUBLISH: kinds.queue_publish,
    Kind.RESCORE: partial(kinds.queue_rescore, model="ab"),
    Kind.SECOND_LOOKS: kinds.queue_second_looks,
    Kind.SYNC: kinds.queue_sync,
    Kind.RECONSIDER: kinds.queue_reconsider,
    Kind.ACCEPT: partial(kinds.queue_accept, max_error="0.02", promise="all", who="me"),
    Kind.WITHDRAW: partial(kinds.queue_withdraw, reason="asked for"),
    Kind.TRAIN: partial(kinds.queue_train, who="me"),
    Kind.WORTH: kinds.queue_worth,
}


def test_every_kind_has_a_handler_and_a_way_to_ask_for_it() -> None:
    assert set(Kind) == set(HANDLERS) == set(ASK)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_a_kind_waits_once_for_a_project_and_runs_once(kind: Kind, tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/store.db") as store:
        upgrade(store)
        with store.write() as session:
            project, other = ensure_project(session, "7.1"), ensure_project(session, "8.1")
            first = ASK[kind](session, project)
            assert ASK[kind](session, project) == first
            assert is_pending(session, kind, project)
            assert not is_running(session, kind, project)
            assert not is_pending(session, kind, other)
            assert not any(is_pending(session, each, project) for each in Kind if each is not kind)
        with store.write() as session:
            job = acquire_job(session, holder="w", kinds=[kind.value])
            assert job is not None
            assert (job.kind, job.key, job.project_id) == (kind, f"{kind}:7.1", project.id)
            assert is_running(session, kind, project)
            assert ASK[kind](session, project) != first  # it may have read its inputs before this request
            finish_job(session, job)
            assert not is_running(session, kind, project)
            assert is_pending(session, kind, project)
            payloads = [each.payload for each in list_jobs(session)]
        expected: dict[Kind, dict[str, str]] = {
            Kind.REFIT: {"reason": "asked for"},
            Kind.TRAIN: {"who": "me", "labels": "0"},
            Kind.RESCORE: {"model": "ab"},
            Kind.WITHDRAW: {"reason": "asked for"},
            Kind.ACCEPT: {"max_error": "0.02", "promise": "all", "who": "me", "dry_run": ""},
        }
        assert payloads == [expected.get(kind, {})] * 2


def test_a_wish_that_waits_is_replaced_by_a_later_one_but_not_by_a_look_at_the_same(tmp_path: Path) -> None:
    def waiting(session: Session) -> tuple[object, object]:
        (job,) = list_jobs(session)
        return job.payload["max_error"], job.payload["dry_run"]

    with Store(f"sqlite:///{tmp_path}/store.db") as store:
        upgrade(store)
        with store.write() as session:
            project = ensure_project(session, "7.1")
            ask = partial(kinds.queue_accept, session, project, promise="all", who="me")
            ask(max_error="0.02", dry_run=True)
            assert waiting(session) == ("0.02", "yes")
            ask(max_error="0.02")
            assert waiting(session) == ("0.02", "")
            ask(max_error="0.02", dry_run=True)
            assert waiting(session) == ("0.02", "")
            ask(max_error="0.05", dry_run=True)
            assert waiting(session) == ("0.05", "yes")
