"""What cannot be pulled is made here: an image under the name that the Dockerfile asks for, and one for PostgreSQL.

Both come from the Debian that this machine's apt knows. They stand in for the images on a registry and are not the
same: Debian's Python and Debian's PostgreSQL are older than the tags say.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlparse

from engine import CheckError, Store

DATABASE_IMAGE = "stand-in-for-postgres"
_PYTHON_PACKAGES = "ca-certificates,python3,python3-venv,python3-pip,python-is-python3"
_HERE = Path(__file__).parent


def base_name(dockerfile: Path) -> str:
    """Return the name of the image that a Dockerfile begins with."""
    text = dockerfile.read_text(encoding="utf-8")
    (tag,) = re.findall(r"^ARG PYTHON=(\S+)$", text, re.MULTILINE)
    (name,) = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    return str(name.replace("${PYTHON}", tag))


def make_base(store: Store, name: str) -> None:
    """Make Debian's smallest system with its Python and give it a name."""
    mirror, suite = debian_mirror()
    root, archive = store.place / "root", store.place / "root.tar"
    _remove_root(root)
    log = store.place / "debootstrap.log"
    with log.open("wb") as stream:
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={_PYTHON_PACKAGES}", suite, str(root), mirror],
            check=False, stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
    if done.returncode:
        raise CheckError(f"debootstrap ended with {done.returncode}: see {log}")
    for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()  # the image of that name lets pip install for everybody
    left_out = ("./proc/*", "./sys/*", "./dev/*", "./var/cache/apt/archives/*", "./var/lib/apt/lists/*")
    subprocess.run(
        ["tar", "--create", "--file", str(archive), *(f"--exclude={each}" for each in left_out), "-C", str(root), "."],
        check=True,
    )
    container = store.call("from", "scratch")
    store.call("add", container, str(archive), "/")
    store.call("commit", "--rm", container, name)
    archive.unlink()
    _remove_root(root)


def make_database_image(store: Store, base: str) -> None:
    """Make the image with Debian's PostgreSQL and an entrypoint that reads the variables of docker-compose.yml."""
    container = store.call("from", "--pull-never", base)
    install = (
        "apt-get update && apt-get install --yes --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/*"
    )
    store.call("run", "--isolation", "chroot", container, "--", "sh", "-c", install, log=store.place / "postgresql.log")
    store.call("copy", "--chmod", "755", container, str(_HERE / "postgresql.sh"), "/usr/local/bin/entrypoint")
    store.call("config", "--user", "postgres", "--entrypoint", '["entrypoint"]', container)
    store.call("commit", "--rm", "--format", "docker", container, DATABASE_IMAGE)


def debian_mirror() -> tuple[str, str]:
    """Return address and suite of the first Debian archive that apt knows.

    Raises:
        CheckError: when it knows none.
    """
    asked = ["apt-get", "indextargets", "--format", "$(SITE)|$(CODENAME)|$(LABEL)", "Created-By: Packages"]
    for line in subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines():
        site, suite, label = line.split("|")
        if label == "Debian":
            return site, suite
    raise CheckError("expected apt to know an archive of Debian, got none: run apt-get update, or add one")


def pip_settings() -> tuple[str, list[str]]:
    """Return this machine's pip configuration as the text of one pip.conf, and the local paths that it names.

    Variables of the environment come last in pip's list and win here as they do there.
    """
    said = subprocess.run(["pip", "config", "list"], check=True, capture_output=True, text=True).stdout
    settings: dict[str, str] = {}
    for line in said.splitlines():
        match = re.fullmatch(r"(?P<section>[^=]*)\.(?P<name>[\w-]+)='(?P<value>.*)'", line)
        if match is not None and match["section"] in {"global", "install", "site", "user"}:
            settings.setdefault(match["name"], match["value"])
    for line in said.splitlines():
        match = re.fullmatch(r":env:\.(?P<name>[\w-]+)='(?P<value>.*)'", line)
        if match is not None:
            settings[match["name"]] = match["value"]
    words = [word for value in settings.values() for word in value.replace("\\n", " ").split()]
    paths = {urlparse(word).path if word.startswith("file:") else word for word in words}
    lines = [f"{name} = {value}".replace("\\n", " ") for name, value in settings.items()]
    local = {_mounted(Path(path)) for path in paths if path.startswith("/") and Path(path).exists()}
    return "\n".join(["[global]", *lines, ""]), sorted(local)


def _mounted(path: Path) -> str:
    # An index on disk links to files beside its pages.
    return str(path.parent if path.name == "simple" else path)


def _remove_root(root: Path) -> None:
    if root.exists():
        shutil.rmtree(root)
