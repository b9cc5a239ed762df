"""Starting Label Studio for ourselves: one user, no analytics, a backend on this machine allowed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import httpx

from backend.demo.errors import DemoError
from backend.demo.install import DATABASE, empty_database
from backend.demo.processes import LOOPBACK, Child
from backend.demo.variables import Account, label_studio_variables

START_SECONDS = 300.0


def start_label_studio(
    command: Sequence[str],
    *,
    port: int,
    data: Path,
    account: Account,
    log: Path,
    more: Mapping[str, str] | None = None,
) -> Child:
    """Start the server on loopback; it is up when `wait_until_up` returns.

    A new data directory begins with a copy of the empty database that the installation made. `more` are variables that
    come before ours, say those of another database.
    """
    data.mkdir(parents=True, exist_ok=True)
    database = data / DATABASE
    if not database.exists():
        fresh = database.with_suffix(".new")
        shutil.copyfile(empty_database(Path(command[0]).parents[1]), fresh)
        fresh.rename(database)
    return Child(
        "Label Studio",
        [
            *command,
            *("start", "--no-browser", "--log-level", "INFO"),
            *("--internal-host", LOOPBACK, "--port", str(port)),
        ],
        url=f"http://{LOOPBACK}:{port}",
        log=log,
        environment=label_studio_variables(data.absolute(), base=os.environ, account=account) | dict(more or {}),
        directory=data,
    )


def log_in(url: str, account: Account) -> httpx.Client:
    """Return a client with the cookies of a browser that has logged in; the caller closes it.

    Raises:
        DemoError: when the server does not let this user in.
    """
    client = httpx.Client(base_url=url, follow_redirects=True, timeout=60.0, trust_env=False)
    try:
        client.get("/user/login/").raise_for_status()
        form = {"email": account.username, "password": account.password, "csrfmiddlewaretoken": _csrf(client)}
        client.post("/user/login/", data=form, headers={"Referer": f"{url}/user/login/"}).raise_for_status()
        known = client.get("/api/current-user/whoami").status_code == 200
    except BaseException:
        client.close()
        raise
    if known:
        return client
    client.close()
    raise DemoError(
        f"Label Studio at {url} does not know the user {account.username}: its data directory was made for another "
        "one; start with --reset"
    )


def create_personal_token(url: str, account: Account) -> str:
    """Return a new personal access token of the user, as the account page makes them."""
    with closing(log_in(url, account)) as client:
        answer = client.post("/api/token/", headers={"X-CSRFToken": _csrf(client), "Referer": url})
        answer.raise_for_status()
        return str(answer.json()["token"])


def _csrf(client: httpx.Client) -> str:
    return client.cookies.get("csrftoken") or ""
