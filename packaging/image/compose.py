"""docker-compose.yml as it is read here: variables filled in, services in the order in which they wait."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

_VARIABLE = re.compile(r"\$\{([A-Z_]+)(?::([-?])([^}]*))?\}")


@dataclass(frozen=True)
class Service:
    """One service of the file: its variables name other services with the ports that are free here."""

    name: str
    variables: dict[str, str]
    command: list[str]
    health: list[str] | None
    volumes: list[tuple[str, str]]  # name of the volume, path inside
    configs: list[tuple[str, str]]  # content, path inside


def read_services(path: Path, given: Mapping[str, str], ports: Mapping[str, tuple[int, int]]) -> list[Service]:
    """Return the services, those that others wait for first.

    `given` is what `.env` would say. `ports` holds the port of a service in the file and the one it has here: all share
    one network, in which the usual ports may be taken.
    """
    text = path.read_text(encoding="utf-8")
    document = yaml.safe_load(_VARIABLE.sub(lambda match: _value(match, given), text))
    services: dict[str, dict[str, Any]] = document["services"]
    order = TopologicalSorter({name: service.get("depends_on", {}).keys() for name, service in services.items()})
    made = []
    for name in order.static_order():
        service = services[name]
        variables = {key: _moved(str(value), ports) for key, value in service["environment"].items()}
        health = service["healthcheck"].get("test")
        made.append(
            Service(
                name=name,
                variables=variables,
                command=[str(word) for word in service.get("command", [])],
                health=None if health is None else [_moved(str(word), ports) for word in health],
                volumes=[tuple(volume.split(":")) for volume in service.get("volumes", [])],
                configs=[
                    (document["configs"][config["source"]]["content"], config["target"])
                    for config in service.get("configs", [])
                ],
            )
        )
    return made


def _value(match: re.Match[str], given: Mapping[str, str]) -> str:
    name, kind, rest = match.groups()
    if given.get(name):
        return given[name]
    if kind == "-":
        return str(rest)
    raise KeyError(name)


def _moved(text: str, ports: Mapping[str, tuple[int, int]]) -> str:
    """Put the ports of this machine in place of those of the file, wherever an address names one."""
    for name, (usual, here) in ports.items():
        for host in (name, "127.0.0.1", "localhost"):
            text = text.replace(f"{host}:{usual}", f"{host}:{here}")
    return text
