"""docker-compose.yml, Dockerfile and .env.example hold together. No container engine is needed for this."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import click
import pytest
import yaml

from backend import __version__
from backend.cli import main
from backend.doctor.health import CHECKS
from backend.settings import Settings, load_settings, variable_of
from tests.support.paths import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("migrate", "service", "worker")
DOCKERFILE = (ROOT / "Dockerfile").read_text()
VARIABLE = re.compile(r"\$\{(?P<name>[A-Z_]+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\}")
EXAMPLE = dict(
    line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")
)


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in texts(each)]
    return [str(value)]


def test_every_variable_is_in_the_example_and_the_reverse() -> None:
    used = {match["name"]: match for text in texts(COMPOSE) for match in VARIABLE.finditer(text)}
    assert set(used) == set(EXAMPLE)
    for name, match in used.items():
        # What has no default in the file must be given, and the example must not suggest a password.
        assert (match["kind"] == "?") == (EXAMPLE[name] == "" and name != "SURESPAN_MODEL"), name
        if match["kind"] == "-":
            assert match["rest"] == EXAMPLE[name], name


def test_secrets_come_from_the_environment_only() -> None:
    for name, service in SERVICES.items():
        for key, value in service["environment"].items():
            if (
                re.search(r"PASS|SECRET|TOKEN|API_KEY|DATABASE_URL", key)
                and key != "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN"
            ):
                assert ":?" in value, f"{name}: {key}"


def test_images_are_pinned() -> None:
    for name, service in SERVICES.items():
        assert re.search(r":\d+\.\d+(\.\d+)?(-[a-z]+)?$", service["image"]), name
    assert {SERVICES[name]["image"] for name in OURS} == {f"surespan:{__version__}"}
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+-slim-[a-z]+$", DOCKERFILE, re.MULTILINE)


def test_who_waits_for_health_waits_for_someone_who_says_so() -> None:
    for name, service in SERVICES.items():
        for other, need in service.get("depends_on", {}).items():
            if need["condition"] == "service_healthy":
                assert "test" in SERVICES[other]["healthcheck"], f"{name} waits for {other}"
            else:
                assert SERVICES[other]["restart"] == "no", f"{name} waits for {other}, which never ends"
    assert [name for name, service in SERVICES.items() if service["healthcheck"].get("disable")] == ["migrate"]


@pytest.mark.parametrize("name", OURS)
def test_our_commands_and_checks_exist(name: str) -> None:
    words = list(SERVICES[name]["command"])
    group: click.Command = main
    while words:
        assert isinstance(group, click.Group)
        found = group.get_command(click.Context(group), words.pop(0))
        assert found is not None
        group = found
    test = SERVICES[name]["healthcheck"].get("test")
    assert test is None or (test[:4] == ["CMD", "python", "-m", "backend.doctor.health"] and test[4] in CHECKS)


@pytest.mark.parametrize("name", OURS)
def test_our_settings_are_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {variable_of(field) for field in Settings.model_fields} | {"OMP_NUM_THREADS"}
    given = SERVICES[name]["environment"]
    assert set(given) <= known
    for key, value in given.items():
        filled = VARIABLE.sub(lambda match: EXAMPLE[match["name"]] or "x" * (match["name"] != "SURESPAN_MODEL"), value)
        monkeypatch.setenv(key, filled)
    settings = load_settings()
    assert settings.database_url.startswith("postgresql://surespan:x@database:5432/")
    assert settings.label_studio_api_key is not None
    assert settings.basic_auth_pass is not None


def test_volumes_and_configs_are_declared() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"]
        for config in service.get("configs", []):
            assert config["source"] in COMPOSE["configs"]


def test_label_studio_may_reach_a_private_address_but_not_the_link_local_one() -> None:
    environment = SERVICES["label-studio"]["environment"]
    assert environment["USE_DEFAULT_BANNED_SUBNETS"] == "false"
    assert environment["USER_ADDITIONAL_BANNED_SUBNETS"] == "169.254.0.0/16"
    assert f"{SERVICES['service']['environment']['LABEL_STUDIO_URL']}".endswith("//label-studio:8080")


def test_the_image_is_built_from_what_is_there_and_runs_as_nobody_special() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    names = {name for each in copied for name in each.split()}
    assert names == allowed
    assert all((ROOT / name).exists() for name in names)
    lines = [line.split()[0] for line in DOCKERFILE.splitlines() if line and line[0].isupper()]
    assert lines.index("USER") < lines.index("ENTRYPOINT")
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE) == ["surespan"]
    # Packages come with the wheel's own ranges, from wherever the builder's pip takes them.
    assert re.findall(r"pip install (?!--no-cache-dir \"setuptools)(\S+)", DOCKERFILE) == ["/dist/*.whl"]
    assert not re.search(r"https?://", DOCKERFILE)


def test_the_check_of_the_image_says_what_it_lacks_and_fails_nothing() -> None:
    script = ROOT / "packaging" / "image" / "check.py"
    environment = {"PATH": "/nonexistent", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "lacks buildah and debootstrap (apt-get install buildah debootstrap)" in done.stdout
