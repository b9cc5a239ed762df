"""`surespan serve` as the demonstration runs it: SQLite, the bundled model, the worker inside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from backend.demo.errors import DemoError
from backend.demo.processes import LOOPBACK, Child
from backend.demo.state import DemoState

START_SECONDS = 120.0
# So that a newcomer sees the loop close: at alpha = 0.05 a threshold is finite from 19 labels on.
ALPHA, LABELS_TO_REFIT = "0.05", 20
BLIND = "0.25"  # usually one in ten; here enough of them for a guarantee of one's own
_OURS = ("SURESPAN_", "LABEL_STUDIO_", "BASIC_AUTH_")
_OURS_EXACTLY = {"MODEL_DIR", "PORT", "WORKERS", "THREADS", "LOG_LEVEL"}


def service_variables(directory: Path, state: DemoState, *, url: str, port: int) -> dict[str, str]:
    """Return the environment of the service, and of the commands that work on its database."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(_OURS) and name not in _OURS_EXACTLY
    }
    return kept | {
        "SURESPAN_DATABASE_URL": f"sqlite:///{directory.absolute() / 'surespan.db'}",
        "SURESPAN_HOST": LOOPBACK,
        "PORT": str(port),
        "BASIC_AUTH_USER": state.service_user,
        "BASIC_AUTH_PASS": state.service_password,
        "SURESPAN_WEBHOOK_SECRET": state.webhook_secret,
        "LABEL_STUDIO_URL": url,
        "LABEL_STUDIO_API_KEY": state.token,
        "SURESPAN_ALPHA": ALPHA,
        "SURESPAN_BLIND": BLIND,
        "SURESPAN_N_MIN": str(LABELS_TO_REFIT),
        "SURESPAN_REFIT_EVERY_LABELS": str(LABELS_TO_REFIT),
    }


def start_service(directory: Path, variables: dict[str, str]) -> Child:
    """Start the service; it is up when `wait_until_up` returns."""
    return Child(
        "surespan serve",
        [sys.executable, "-m", "backend", "serve"],
        url=f"http://{LOOPBACK}:{variables['PORT']}",
        log=directory / "surespan.log",
        environment=variables,
        directory=directory,
    )


def connect(directory: Path, variables: dict[str, str], project: int) -> list[str]:
    """Run `surespan connect`, as anybody would, and return what it said; doing it again changes nothing.

    The texts are in an order drawn by lot, so labels made in the order of the list may calibrate too.

    Raises:
        DemoError: when it fails, with what it said.
    """
    command = [
        sys.executable,
        "-m",
        "backend",
        "connect",
        "--project",
        str(project),
        "--sampling",
        "keep",
        "--shuffled",
        "--yes",
    ]
    done = subprocess.run(  # noqa: S603 - our own command line
        command, env=variables, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DemoError(f"surespan connect failed:\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.splitlines()


def wait_until_published(
    variables: dict[str, str], uid: str, *, url: str, seconds: float = 300.0, progress: Callable[[str], None]
) -> None:
    """Wait for the worker to give every task its predictions, which connecting asked for.

    Asking Label Studio for them at the same time would store them twice. When it takes too long or fails, nothing is
    lost: the worker tries again.
    """
    auth = httpx.BasicAuth(variables["BASIC_AUTH_USER"], variables["BASIC_AUTH_PASS"])
    end = time.monotonic() + seconds
    with httpx.Client(base_url=url, auth=auth, timeout=30.0, trust_env=False) as client:
        while time.monotonic() < end:
            jobs = client.get("/api/v1/jobs", params={"project": uid, "limit": 20}).raise_for_status().json()["jobs"]
            mine = [job for job in jobs if job["kind"] == "publish"]
            if not any(job["state"] in {"queued", "running"} for job in mine):
                return
            progress(next((f"{job['done']} of {job['total']}" for job in mine if job["total"]), "waiting"))
            time.sleep(0.3)
