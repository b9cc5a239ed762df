"""A thousand tasks accepted in a real Label Studio by processes that are killed at every stage, on both databases.

On SQLite the whole service dies, on PostgreSQL the worker beside it. What `make soak` prints goes to
docs/results/acceptance.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backend.demo.processes import Child
from backend.domain.records import ProjectRecord
from backend.labelstudio.client import Json
from backend.store import Store
from backend.store.acceptance import PLANNED, SENT, TAKEN_BACK, count_accepted, count_blind_labels, list_acceptances
from backend.store.monitor import DRIFT, list_alarms
from backend.store.projects import find_project
from backend.store.tables import AcceptedTask, Annotation, CalibrationScore, ServedSet, Task
from tests.e2e.test_acceptance import PLACES, regions
from tests.support.commands import surespan
from tests.support.databases import Server, migrate
from tests.support.end_to_end import ProjectFactory
from tests.support.label_studio import LabelStudioServer, Project, Service, import_texts, wait_for_death
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.crash]

TASKS = 1_450
ODD = 400  # texts that come later and look like nothing before
BLIND = 0.15
BLIND_LABELS = 126
PATIENCE = 900.0  # seconds until something is called lost
_NAMES = ("Kolo", "Mbeki", "Anter", "Quilt", "Lombok", "Stad", "Verona", "Jazz", "Ivory", "Nine", "Zar", "Omega")

TEXTS = [f"It rained in {PLACES[i % 5]} on day {i}, as everybody had expected." for i in range(TASKS)]
ODD_TEXTS = [
    " ".join(f"{_NAMES[(i * 7 + j * j) % 12]} {_NAMES[(i + 5 * j) % 12]}{'s' * (j % 2)}" for j in range(6)) + f" {i}"
    for i in range(ODD)
]


@dataclass
class Trial:
    """One project on one service, and who works for it: the service itself, or a worker beside it."""

    kind: str
    service: Service
    work: Project
    store: Store
    project: ProjectRecord
    worker: Child | None = None
    begun: float = field(default_factory=time.monotonic)

    def say(self, what: str) -> None:
        print(f"[{self.kind}] {time.monotonic() - self.begun:5.0f} s: {what}", flush=True)

    def rise(self, stage: str = "never") -> None:
        """Start whoever works, to die at a stage."""
        if self.kind == "sqlite":
            self.service.start(("tests.support.mortal", stage), wait=stage in {"never", "alarmed"})
            return
        self.worker = Child(
            f"surespan worker, {stage}",
            [sys.executable, "-m", "tests.support.mortal", stage, "worker"],
            url="",
            log=self.service.directory / "worker.log",
            environment=self.service.environment,
            directory=self.service.directory,
        )

    def fall(self) -> None:
        """Wait until whoever works has killed itself."""
        if self.kind == "sqlite":
            self.service.wait_for_death(PATIENCE)
            return
        assert self.worker is not None
        wait_for_death(self.worker, PATIENCE)

    def rest(self) -> None:
        """Ask whoever works to stop."""
        if self.kind == "sqlite":
            self.service.stop()
        elif self.worker is not None:
            self.worker.stop()

    @contextmanager
    def asking(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Run `surespan accept`, which waits through all that happens to who does the work."""
        process = subprocess.Popen(
            self.service.command("accept", "--project", str(self.work.id), *options, "--json"),
            env=self.service.environment,
            cwd=self.service.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Return what the command printed at its end."""
        said, complained = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said + complained
        return dict(json.loads(said)["job"])

    def tasks(self) -> dict[int, Json]:
        """All tasks as the server has them now."""
        found: dict[int, Json] = {}
        for page in range(1, 21):
            asked = {"project": self.work.id, "page": page, "page_size": 500, "fields": "all"}
            tasks = self.work.server.call("GET", "/api/tasks/", **asked)["tasks"]
            found |= {int(task["id"]): task for task in tasks}
            if len(tasks) < 500:
                return found
        raise AssertionError("more tasks than were ever made")

    def counts(self) -> tuple[int, int, int]:
        """How many accepted tasks are planned, sent and taken back."""
        with self.store.read() as session:
            found = count_accepted(session, self.project.id)
        planned, sent, back = (
            sum(each.get(state, 0) for each in found.values()) for state in ("planned", SENT, TAKEN_BACK)
        )
        return planned, sent, back

    def planned(self) -> set[int]:
        """The tasks that are to be accepted and are not yet."""
        with self.store.read() as session:
            rows = session.execute(
                sa.select(Task.external_id)
                .join(AcceptedTask, AcceptedTask.task_id == Task.id)
                .where(Task.project_id == self.project.id, AcceptedTask.state == PLANNED)
            ).scalars()
            return {int(each) for each in rows}

    def decisions(self) -> int:
        with self.store.read() as session:
            return len(list_acceptances(session, self.project.id))

    def blind(self) -> dict[int, list[Json]]:
        """Blind tasks in their random order, each with what the model says about it."""
        with self.store.read() as session:
            rows = session.execute(
                sa.select(Task.external_id, Task.text, ServedSet.ranked)
                .join(ServedSet, ServedSet.task_id == Task.id)
                .where(Task.project_id == self.project.id, Task.blind.is_(True), ServedSet.shadow.is_(True))
                .order_by(Task.random_order)
            ).all()
        return {int(task): regions(text, ranked) for task, text, ranked in rows}

    def evidence(self) -> int:
        with self.store.read() as session:
            model = session.execute(sa.select(CalibrationScore.model_id).limit(1)).scalar_one_or_none()
            return 0 if model is None else count_blind_labels(session, self.project.id, model_id=model)

    def wait_for_jobs(self) -> None:
        """Wait until no job of the project waits or runs."""

        def idle() -> bool:
            jobs = self.service.call("GET", f"/api/v1/jobs?project={self.work.uid}&limit=50")["jobs"]
            return not any(job["state"] in {"queued", "running"} for job in jobs)

        wait_for(idle, "all jobs are done", seconds=PATIENCE)

    def is_marked(self, annotations: list[int]) -> bool:
        """Whether a person's time on these annotations has come in."""
        with self.store.read() as session:
            rows = session.execute(
                sa.select(sa.func.count())
                .select_from(Annotation)
                .where(Annotation.annotation_id.in_(annotations), Annotation.lead_time.is_not(None))
            ).scalar_one()
        return int(rows) == len(annotations)


@pytest.fixture(params=["sqlite", "postgresql"])
def trial(
    request: pytest.FixtureRequest,
    label_studio: LabelStudioServer,
    make_project: ProjectFactory,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Trial]:
    """A connected project of 1,450 easy texts, and a service on one of the databases."""
    kind = str(request.param)
    directory = tmp_path_factory.mktemp(f"trial-{kind}")
    with _database(kind, directory, request) as url:
        settings = {
            "SURESPAN_DATABASE_URL": url,
            "SURESPAN_BLIND": str(BLIND),
            "SURESPAN_AT_WORK_MINUTES": "0",
            "SURESPAN_REFIT_EVERY_LABELS": "10000",
            "SURESPAN_N_MIN": "50",
        }
        service = Service(directory, label_studio, api_key=label_studio.account.token, settings=settings)
        work = make_project(TEXTS[:10], title=f"Accepted, {kind}")
        for first in range(10, TASKS, 500):
            work = Project(
                work.server,
                work.id,
                work.created_at,
                work.tasks + work.add(TEXTS[first : first + 500][: TASKS - first]),
            )
        if kind == "postgresql":
            service.start()
        with Store(url) as store:
            made = Trial(kind, service, work, store, ProjectRecord(0, "", "", "", None, None))
            try:
                made.rise()
                options = (
                    "--project",
                    str(work.id),
                    "--backend-url",
                    service.url,
                    "--sampling",
                    "keep",
                    "--yes",
                    "--json",
                )
                service.run("connect", *options)
                with store.read() as session:
                    project = find_project(session, work.uid)
                assert project is not None
                made.project = project
                made.wait_for_jobs()
                yield made
            finally:
                made.rest()
                service.stop()


@contextmanager
def _database(kind: str, directory: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    if kind == "sqlite":
        url = f"sqlite:///{directory / 'surespan.db'}"
        migrate(url)
        yield url
        return
    server: Server = request.getfixturevalue("postgresql")
    with server.database() as url:
        migrate(url)
        yield url


def label_blind(trial: Trial, tasks: dict[int, list[Json]]) -> None:
    """Label blind tasks as the model would, and wait until all are evidence."""
    before = trial.evidence()
    for task, result in tasks.items():
        trial.work.server.annotate(task, result, lead_time=2.0)
    wait_for(lambda: trial.evidence() >= before + len(tasks), "all blind labels are scored", seconds=PATIENCE)


def check_accepted(trial: Trial, left_alone: set[int]) -> set[int]:
    """Return the accepted tasks: each has exactly one annotation, rank 1 of what served, and none is left alone."""
    accepted = set()
    for number, task in trial.tasks().items():
        ours = [each for each in task["annotations"] if each["parent_prediction"] is not None]
        if not ours:
            continue
        accepted.add(number)
        assert number not in left_alone
        assert len(task["annotations"]) == 1, f"task {number} has {len(task['annotations'])} annotations"
        best = [each for each in task["predictions"] if each["id"] == ours[0]["parent_prediction"]]
        assert len(best) == 1
        assert " #" not in best[0]["model_version"]
        if ours[0]["lead_time"] is None:
            assert [each["value"] for each in ours[0]["result"]] == [each["value"] for each in best[0]["result"]]
    return accepted


def check_exports(trial: Trial, *, confirmed: int, accepted: int) -> None:
    for choice, count in (
        ("", confirmed),
        ("exclude", confirmed),
        ("include", confirmed + accepted),
        ("only", accepted),
    ):
        options = ("--accepted", choice) if choice else ()
        asked = ("export", "--project", str(trial.work.id), "--format", "jsonl", *options)
        lines = surespan(trial.service, *asked).splitlines()
        assert len(lines) == count, choice
        marked = accepted if choice in {"include", "only"} else 0
        assert sum("accepted" in json.loads(line) for line in lines) == marked


def test_a_thousand_tasks_killed_at_every_stage(trial: Trial) -> None:
    """One long story: each step needs what the one before it left behind."""
    server = trial.work.server
    blind = trial.blind()
    assert len(blind) >= BLIND_LABELS
    trial.say(f"{TASKS} tasks connected and predicted, {len(blind)} of them blind")
    label_blind(trial, dict(list(blind.items())[:BLIND_LABELS]))
    trial.service.call("POST", "/train", {"project": trial.work.uid})
    trial.wait_for_jobs()
    free = [number for number, task in trial.tasks().items() if not task["annotations"] and number not in blind]
    drafted, skipped = free[:2]
    server.call("POST", f"/api/tasks/{drafted}/drafts", {"result": [], "lead_time": 1})
    server.annotate(skipped, [], was_cancelled=True)
    left_alone = {*blind, drafted, skipped}
    trial.say(f"{BLIND_LABELS} blind labels scored, flags fitted")
    trial.rest()

    # One command waits; who works for it dies at every stage, and the next one goes on.
    with trial.asking("--max-error", "0.05") as command:
        trial.rise("decided")
        trial.fall()
        assert (trial.decisions(), trial.counts()) == (1, (0, 0, 0))
        trial.rise("planned")
        trial.fall()
        planned = trial.planned()
        assert not planned & set(blind)
        # Drafts are known to the server alone: such a task is planned, and left alone when its turn comes.
        total = len(planned - left_alone)
        assert total >= 1_000
        assert (trial.decisions(), trial.counts()) == (1, (len(planned), 0, 0))
        sent = 0
        for count in (1, 400):
            trial.rise(f"sent:{count}")
            trial.fall()
            sent += count
            there = check_accepted(trial, left_alone)
            # The last answer was heard by nobody: found again, or named by its webhook.
            assert sent - 1 <= len(there) <= sent
            assert total <= sum(trial.counts()) <= len(planned)
        trial.rise("all-sent")
        trial.fall()
        assert trial.counts() == (0, total, 0)
        assert command.poll() is None
        trial.rise()
        done = trial.answer(command)
    assert done["in_all"] == {SENT: total}
    assert (trial.decisions(), trial.counts()) == (1, (0, total, 0))
    accepted = check_accepted(trial, left_alone)
    assert len(accepted) == total
    trial.wait_for_jobs()
    check_exports(trial, confirmed=BLIND_LABELS, accepted=total)
    assert trial.evidence() == BLIND_LABELS
    trial.say(
        f"{total} tasks accepted, killed 5 times: complete, no doubles, no blind, drafted or skipped task, exports"
    )

    # People have a hand in a few: edits, a draft, a word of truth.
    now = trial.tasks()
    some = sorted(accepted)
    edited, drafted_later, vouched = some[:5], some[5], some[6]
    numbers = {task: int(now[task]["annotations"][0]["id"]) for task in some[:7]}
    for task in edited:
        server.call("PATCH", f"/api/annotations/{numbers[task]}/", {"result": [], "lead_time": 4.0})
    server.call("POST", f"/api/tasks/{drafted_later}/drafts", {"result": [], "lead_time": 1})
    server.call("PATCH", f"/api/annotations/{numbers[vouched]}/", {"ground_truth": True})
    wait_for(lambda: trial.is_marked([numbers[task] for task in edited]), "the edits have come in", seconds=PATIENCE)
    touched = {*edited, drafted_later, vouched}
    trial.rest()
    with trial.asking("--withdraw") as command:
        trial.rise("marked")
        trial.fall()
        assert trial.counts() == (0, total, 0)
        trial.rise("deleted:300")
        trial.fall()
        assert total - 300 <= len(check_accepted(trial, left_alone)) <= total - 299
        trial.rise()
        done = trial.answer(command)
    assert done["touched"] == len(touched)
    assert check_accepted(trial, left_alone) == touched
    assert trial.counts() == (0, len(touched), total - len(touched))
    trial.wait_for_jobs()
    check_exports(trial, confirmed=BLIND_LABELS, accepted=len(touched))
    trial.say(
        f"withdrawn, killed twice: {total - len(touched)} taken back, exactly the {len(touched)} touched are left"
    )

    # Another wish accepts again. Then strange texts come, and the alarm of drift takes back by itself.
    with trial.asking("--max-error", "0.06") as command:
        trial.answer(command)
    again = check_accepted(trial, left_alone)
    assert touched < again
    assert trial.counts()[:2] == (0, len(again))
    assert len(again) == total
    odd = set(import_texts(server, trial.work.id, ODD_TEXTS))
    trial.work.predict(odd)
    strange = wait_for(lambda: {t: said for t, said in trial.blind().items() if t in odd}, "odd tasks are drawn")
    trial.say(f"{len(again)} accepted again under decision 2; {len(odd)} strange texts, {len(strange)} of them blind")
    trial.wait_for_jobs()
    trial.rest()
    trial.rise("alarmed")
    for task, result in strange.items():
        server.annotate(task, result, lead_time=2.0)
        if trial.kind == "sqlite" and not trial.service.alive:
            break
    trial.fall()
    with trial.store.read() as session:
        assert [each.kind for each in list_alarms(session, trial.project.id)].count(DRIFT) >= 1
    assert check_accepted(trial, left_alone) == again
    trial.rise()
    wait_for(lambda: trial.counts()[1] == len(touched), "what nobody touched is taken back", seconds=PATIENCE)
    trial.wait_for_jobs()
    assert check_accepted(trial, left_alone) == touched
    with trial.store.read() as session:
        last = list_acceptances(session, trial.project.id)[-1]
    assert (last.number, last.withdrawn_why) == (2, "an alarm of drift")
    trial.say(f"an alarm of drift, its process killed at once: taken back by itself but for the {len(touched)} touched")
