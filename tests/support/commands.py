"""`surespan ...` as people call it, in the environment of a service of the tests."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.support.label_studio import Service


def surespan(service: Service, *arguments: str, fails: bool = False, **environment: str) -> str:
    """Run a command beside the service and return what it prints; with `fails`, what it complains about.

    A command that must fail is a process of its own, with the exit code and the complaint that a shell would see.
    """
    environment = {"PORT": str(service.port)} | environment
    if not fails:
        return service.run(*arguments, **environment)
    done = subprocess.run(
        service.command(*arguments),
        env=service.environment | environment,
        cwd=service.directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0, done.stdout + done.stderr
    return done.stderr


def surespan_json(service: Service, *arguments: str) -> Any:
    """Run a command with --json and return its answer."""
    return json.loads(surespan(service, *arguments, "--json"))
