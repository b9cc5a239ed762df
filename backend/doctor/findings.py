"""What a check found: a state, the facts, what to do about them and where to read more. No secret is ever in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

RUNBOOK = "docs/operate.md"
MACHINE, SERVICE, SERVER, PROJECT = "This machine", "The service", "Label Studio", "Project"

# Every check with the group it belongs to; docs/operate.md has an entry for each, which a test looks for.
CHECKS = {
    "settings": MACHINE,
    "database": MACHINE,
    "schema": MACHINE,
    "disk": MACHINE,
    "cache": MACHINE,
    "model": MACHINE,
    "worker": MACHINE,
    "inbox": MACHINE,
    "scoring": MACHINE,
    "service": SERVICE,
    "credentials": SERVICE,
    "label-studio": SERVER,
    "token": SERVER,
    "address": SERVER,
    "project": PROJECT,
    "labels": PROJECT,
    "flags": PROJECT,
    "own-model": PROJECT,
    "backend": PROJECT,
    "version": PROJECT,
    "webhook": PROJECT,
    "sampling": PROJECT,
    "prelabels": PROJECT,
    "sync": PROJECT,
    "alarms": PROJECT,
}


class State(StrEnum):
    """How a check ended. Only `FAIL` means that something does not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    >>> Finding("token", State.FAIL, "refused", "make a new one").link
    'docs/operate.md#doctor-token'
    """

    check: str
    state: State
    facts: str
    remedy: str = ""
    project: int | None = None
    anchor: str | None = None

    @property
    def link(self) -> str:
        """Where the runbook says more."""
        return f"{RUNBOOK}#{self.anchor or 'doctor-' + self.check}"

    @property
    def group(self) -> str:
        """The heading it stands under."""
        group = CHECKS[self.check]
        return f"{group} {self.project}" if group == PROJECT and self.project is not None else group

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "check": self.check,
            "project": self.project,
            "state": self.state.value,
            "found": self.facts,
            "remedy": self.remedy,
            "link": self.link,
        }


def ok(check: str, facts: str, *, project: int | None = None) -> Finding:
    """Return that all is well."""
    return Finding(check, State.OK, facts, project=project)


def warn(check: str, facts: str, remedy: str, *, project: int | None = None) -> Finding:
    """Return that something works, but not as one would want."""
    return Finding(check, State.WARN, facts, remedy, project)


def fail(check: str, facts: str, remedy: str, *, project: int | None = None) -> Finding:
    """Return that something does not work."""
    return Finding(check, State.FAIL, facts, remedy, project)


def skipped(check: str, why: str, remedy: str = "", *, project: int | None = None) -> Finding:
    """Return that nothing could be looked at."""
    return Finding(check, State.SKIPPED, why, remedy, project)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names for a sentence, the first few of them.

    >>> listed(["PER", "LOC"]), listed(list("abcdefghijk"), 2)
    ('PER, LOC', 'a, b and 9 more')
    """
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
