"""Build the image and run docker-compose.yml's services from it, without a container engine: `make image`.

Needs root, and Debian's packages buildah and debootstrap; says so and ends where they are missing. What is made lies
in .surespan/image: Debian's images are made once, that of Surespan every time. docs/results/containers.md has the
output of a run and says what it shows and what it does not.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
from base import DATABASE_IMAGE, base_name, make_base, make_database_image, pip_settings
from compose import Service, read_services
from engine import CheckError, Container, Process, Store, wait_until_healthy

from backend.demo.install import ENVIRONMENT, label_studio_command
from backend.demo.processes import free_port
from backend.demo.variables import Account, label_studio_variables

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "surespan:check"
SUSPECT_BYTES = 3_000_000_000  # more than this, and torch brought CUDA along
HEALTHY_SECONDS = 300.0
OURS = ("migrate", "service", "worker")
GIVEN = {
    "POSTGRES_PASSWORD": "passwordofacheck",
    "LABEL_STUDIO_USERNAME": "annotator@example.com",
    "LABEL_STUDIO_PASSWORD": "password-of-a-check",
    "LABEL_STUDIO_USER_TOKEN": "0123456789abcdef" * 2 + "01234567",
    "BASIC_AUTH_USER": "surespan",
    "BASIC_AUTH_PASS": "password-of-a-check",
    "SURESPAN_WEBHOOK_SECRET": "secret-of-a-check",
}
T = TypeVar("T")
TEXT = "Angela Merkel met Ada Lovelace in Berlin."


def main() -> int:
    """Run the whole check; returns the exit code."""
    lacking = [program for program in ("buildah", "debootstrap") if shutil.which(program) is None]
    if lacking or os.geteuid() != 0:
        what = f"{' and '.join(lacking)} (apt-get install buildah debootstrap)" if lacking else "root"
        print(f"Left out: the image is built with buildah, and this machine lacks {what}.")
        return 0
    begun = time.monotonic()
    store = Store(ROOT / ".surespan" / "image")
    try:
        store.remove_containers()
        build(store)
        look_inside(store)
        with tempfile.TemporaryDirectory() as directory:
            run_services(store, Path(directory))
    except CheckError as error:
        print(f"FAILED  {error}")
        return 1
    finally:
        store.remove_containers()
    print(f"all of it in {time.monotonic() - begun:.0f} s")
    return 0


def say(text: str) -> None:
    """Print a line of the protocol."""
    print(f"ok  {text}", flush=True)


def expect(condition: bool, problem: str) -> None:
    """Stop with the problem unless the condition holds."""
    if not condition:
        raise CheckError(problem)


def build(store: Store) -> None:
    """Build the Dockerfile as it stands, on an image made here."""
    name = base_name(ROOT / "Dockerfile")
    if not store.has(name):
        make_base(store, name)
    if not store.has(DATABASE_IMAGE):
        make_database_image(store, name)
    container = Container(store, name)
    release = container.output(["sh", "-c", ". /etc/os-release; echo $PRETTY_NAME"])
    say(f"base image {name}, made of {release} with {container.output(['python', '--version'])}")
    container.remove()
    configuration, paths = pip_settings()
    secret = store.place / "pip.conf"
    secret.write_text(configuration, encoding="utf-8")
    volumes = [word for path in paths for word in ("--volume", f"{path}:{path}:ro")]
    # A health check is no part of OCI's format: without --format docker it is dropped with a warning.
    log = store.place / "build.log"
    try:
        store.call(
            *(
                "bud",
                "--isolation",
                "chroot",
                "--network",
                "host",
                "--format",
                "docker",
                "--pull-never",
                "--tag",
                IMAGE,
            ),
            *("--secret", f"id=pip.conf,src={secret}", *volumes, str(ROOT)),
            log=log,
        )
    finally:
        secret.unlink()
    steps = [line for line in log.read_text(encoding="utf-8").splitlines() if "] STEP " in line]
    say(f"Dockerfile built: {len(steps)} steps")


def look_inside(store: Store) -> None:
    """Compare what the image says of itself, and what lies in it, with what is promised."""
    config = store.config(IMAGE)
    expect(config["User"] == "surespan", f"expected the user surespan, got {config['User']!r}")
    expect(config["Entrypoint"] == ["surespan"] and config["Cmd"] == ["serve"], "entrypoint or command was lost")
    expect("Healthcheck" in config, "expected a health check in the image, got none")
    say(f"image: user {config['User']}, entrypoint {config['Entrypoint']}, command {config['Cmd']}, a health check")
    container = Container(store, IMAGE)
    version = container.output([*config["Entrypoint"], "--version"])
    identity = container.output(["id"])
    expect("uid=10001(surespan)" in identity, f"expected uid 10001, got {identity}")
    say(f"entrypoint: {version}, as {identity}")
    size = int(container.output(["du", "-sb", "/opt/surespan"]).split()[0])
    torch = container.output(["python", "-c", "import torch; print(torch.__version__, torch.version.cuda)"])
    expect(size < SUSPECT_BYTES, f"/opt/surespan has {size / 1e9:.1f} GB with torch {torch}: a build for CUDA")
    say(f"torch {torch.split()[0]}, without CUDA; /opt/surespan has {size / 1e9:.1f} GB")
    kernels = container.output(["sh", "-c", "find $NUMBA_CACHE_DIR -name '*.nbc' -user surespan | wc -l"])
    expect(int(kernels) > 0, "expected compiled kernels of the image's user, got none: the warm-up left nothing")
    left = container.output(["sh", "-c", "ls -A /tmp /dist 2>/dev/null | grep -v '^/' || true"])
    say(f"warm-up left {kernels} compiled kernels; in /tmp and /dist there is {left or 'nothing'}")
    kept = container.output(["sh", "-c", "cat /etc/pip.conf 2>/dev/null | wc -c"])
    expect(kept == "0", f"expected no pip configuration in the image, got {kept} characters")
    refused = container.run(["sh", "-c", "touch /opt/surespan/x"])
    expect(refused.returncode != 0, "the image's user may write to the program's own files")
    say("no pip.conf was kept; the user may not write to the program's files")
    container.remove()


def run_services(store: Store, directory: Path) -> None:
    """Start what docker-compose.yml names, in its order, and send a text and a label through."""
    usual = {"database": 5432, "label-studio": 8080, "service": 9090}
    ports = {name: (port, free_port()) for name, port in usual.items()}
    services = read_services(ROOT / "docker-compose.yml", GIVEN, ports)
    say(f"docker-compose.yml: {', '.join(service.name for service in services)}, in this order")
    label_studio = label_studio_command(ROOT / ENVIRONMENT)
    running: list[Process] = []
    containers: dict[str, Container] = {}
    try:
        for service in services:
            if service.name == "label-studio":
                if label_studio is None:
                    print("--  label-studio: left out, it is not installed here (surespan demo --install-only)")
                    continue
                running.append(start_label_studio(service, directory, label_studio, ports))
                continue
            container = make_container(store, service, directory, ports)
            containers[service.name] = container
            if service.health is None:
                said = container.output(["surespan", *service.command])
                say(f"{service.name}: {' '.join(service.command)} ended with 0: {said.splitlines()[-1]}")
                continue
            running.append(start(store, service, container, directory))
        use(containers, ports, with_label_studio=label_studio is not None)
        check_volumes(containers, directory)
        for process in [each for each in reversed(running) if each.name in OURS]:
            running.remove(process)
            code = process.stop()
            expect(code == 0, f"{process.name} ended with {code} after SIGTERM, see {process.log}")
            say(f"{process.name}: ended with 0 after SIGTERM")
        check_restart(store, services[0], containers["database"], running, directory, ports)
    finally:
        for process in reversed(running):
            process.stop()


def make_container(store: Store, service: Service, directory: Path, ports: dict[str, tuple[int, int]]) -> Container:
    """Make the container of a service with its volumes; what an engine does with ports is done by variables."""
    ours = service.name in OURS
    variables = dict(service.variables)
    if ours:
        variables["PORT"] = str(ports["service"][1])
    else:
        variables["PGPORT"], variables["PGHOST"] = str(ports["database"][1]), "127.0.0.1"
    volumes = []
    for volume, target in service.volumes:
        place = directory / "volumes" / volume
        if not place.exists():
            place.mkdir(parents=True)
            # An engine fills a new volume with what the image has there, its owner included.
            owner = _owner(store, IMAGE if ours else DATABASE_IMAGE)
            os.chown(place, *owner)
        volumes.append((place, target))
    for number, (content, target) in enumerate(service.configs):
        file = directory / f"{service.name}-{number}{Path(target).suffix}"
        file.write_text(content, encoding="utf-8")
        volumes.append((file, target))
    image = IMAGE if ours else DATABASE_IMAGE
    return Container(store, image, variables=variables, volumes=volumes, hosts=tuple(ports))


def _owner(store: Store, image: str) -> tuple[int, int]:
    container = Container(store, image)
    user, group = container.output(["sh", "-c", "id -u; id -g"]).split()
    container.remove()
    return int(user), int(group)


def start(store: Store, service: Service, container: Container, directory: Path) -> Process:
    """Start a service with its image's entrypoint and wait until its health check passes."""
    config = store.config(IMAGE if service.name in OURS else DATABASE_IMAGE)
    words = [*config["Entrypoint"], *(service.command or config.get("Cmd") or [])]
    process = Process(service.name, container.command(words), log=directory / f"{service.name}.log")
    try:
        healthy = wait_until_healthy(container, process, service.health or [], seconds=HEALTHY_SECONDS)
        say(f"{service.name}: {' '.join(words)}, uid {process.owner()}; healthy: {healthy}")
    except BaseException:
        process.stop()
        raise
    return process


def start_label_studio(
    service: Service, directory: Path, command: Sequence[str], ports: dict[str, tuple[int, int]]
) -> Process:
    """Start Label Studio from its package, with the file's variables, on the container's PostgreSQL."""
    account = Account(*(GIVEN[f"LABEL_STUDIO_{name}"] for name in ("USERNAME", "PASSWORD", "USER_TOKEN")))
    own = label_studio_variables(directory / "label-studio", base=os.environ, account=account)
    base = {name: value for name, value in own.items() if name == "LABEL_STUDIO_BASE_DATA_DIR" or name in os.environ}
    # `database` is a name among containers only.
    here = {"POSTGRE_HOST": "127.0.0.1", "POSTGRE_PORT": str(ports["database"][1])}
    variables = {**base, **service.variables, **here}
    (directory / "label-studio").mkdir()
    port = str(ports[service.name][1])
    words = [*command, "start", "--no-browser", "--internal-host", "127.0.0.1", "--port", port]
    process = Process(service.name, words, log=directory / "label-studio.log", variables=variables)
    test = (service.health or [])[1:]
    try:
        begin = time.monotonic()
        while subprocess.run(test, check=False, capture_output=True).returncode:
            process.check()
            expect(time.monotonic() - begin < 2 * HEALTHY_SECONDS, f"{service.name} was not healthy in time")
            time.sleep(2.0)
    except BaseException:
        process.stop()
        raise
    say(f"{service.name}: from its package, the file's variables, the container's PostgreSQL; its health check passes")
    return process


def use(containers: dict[str, Container], ports: dict[str, tuple[int, int]], *, with_label_studio: bool) -> None:
    """Have a text predicted, and where Label Studio runs, a label brought back."""
    url = f"http://127.0.0.1:{ports['service'][1]}"
    token = base64.b64encode(f"{GIVEN['BASIC_AUTH_USER']}:{GIVEN['BASIC_AUTH_PASS']}".encode()).decode()
    headers = {"Authorization": f"Basic {token}"}
    config = (
        '<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/></Labels>'
        '<Text name="text" value="$text"/></View>'
    )
    body = {"tasks": [{"id": 1, "data": {"text": TEXT}}], "label_config": config, "project": "999.1"}
    answer = call("POST", f"{url}/predict", body, headers=headers)
    found = [TEXT[each["value"]["start"] : each["value"]["end"]] for each in answer["results"][0]["result"]]
    expect("Berlin" in found, f"expected Berlin among the predicted spans, got {found}")
    say(f"service: /predict found {', '.join(found)}")
    if not with_label_studio:
        return
    studio = f"http://127.0.0.1:{ports['label-studio'][1]}"
    headers = {"Authorization": f"Token {GIVEN['LABEL_STUDIO_USER_TOKEN']}"}
    made = call("POST", f"{studio}/api/projects/", {"title": "Check", "label_config": config}, headers=headers)
    project = f"{studio}/api/projects/{made['id']}"
    call("POST", f"{project}/import", [{"data": {"text": TEXT}}] * 3, headers=headers)
    number = str(made["id"])
    containers["service"].output(["surespan", "connect", "--project", number, "--backend-url", url, "--yes"])

    def predicted() -> list[dict[str, Any]]:
        tasks = call("GET", f"{studio}/api/tasks/?project={number}&fields=all", headers=headers)["tasks"]
        return [task for task in tasks if task["predictions"]]

    tasks = wait_for(lambda: predicted() if len(predicted()) == 3 else None, "three tasks with predictions")
    say(f"connected by `surespan connect` inside the service; the worker gave {len(tasks)} tasks their predictions")
    result = tasks[0]["predictions"][0]["result"]
    call("POST", f"{studio}/api/tasks/{tasks[0]['id']}/annotations/", {"result": result}, headers=headers)

    def exported() -> str | None:
        done = containers["worker"].run(["surespan", "export", "--project", number, "--output", "-"])
        return done.stdout if done.returncode == 0 and TEXT in done.stdout else None

    wait_for(exported, "the submitted label in the export")
    say("an annotation was submitted; its webhook reached the service, the worker made it a label, and it is exported")


def check_volumes(containers: dict[str, Container], directory: Path) -> None:
    """See that service and worker share the volume of models, and that their user writes to it."""
    containers["service"].output(["sh", "-c", "echo shared > $MODEL_DIR/check.txt"])
    read = containers["worker"].output(["sh", "-c", "cat $MODEL_DIR/check.txt"])
    owner = (directory / "volumes" / "models" / "check.txt").stat().st_uid
    expect((read, owner) == ("shared", 10001), f"expected shared and uid 10001 in the volume, got {read}, {owner}")
    say("volume models: written by the service as uid 10001, read by the worker")


def check_restart(
    store: Store,
    service: Service,
    container: Container,
    running: list[Process],
    directory: Path,
    ports: dict[str, tuple[int, int]],
) -> None:
    """Stop the database, remove its container and start another one on the same volume."""
    for process in reversed(running):
        process.stop()
    running.clear()
    container.remove()
    another = make_container(store, service, directory, ports)
    running.append(start(store, service, another, directory))
    query = ["--tuples-only", "--no-align", "--command", "select count(*) from events"]
    words = ["psql", "--username=surespan", "--dbname=surespan", *query]
    count = another.output(["env", f"PGPASSWORD={GIVEN['POSTGRES_PASSWORD']}", *words])
    say(f"volume database: a new container on it has the schema and {count} events")


def call(method: str, url: str, body: object = None, *, headers: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    """Call an address of this machine and return its JSON answer."""
    try:
        answer = httpx.request(method, url, json=body, headers=dict(headers), timeout=120.0, trust_env=False)
    except httpx.HTTPError as error:
        raise CheckError(f"{method} {url}: {error!r}") from error
    expect(answer.is_success, f"{method} {url}: {answer.status_code} {answer.text[:300]}")
    return answer.json() if answer.content else None


def wait_for(ask: Callable[[], T | None], what: str) -> T:
    """Ask until there is an answer."""
    begin = time.monotonic()
    while time.monotonic() - begin < HEALTHY_SECONDS:
        answer = ask()
        if answer:
            return answer
        time.sleep(2.0)
    raise CheckError(f"expected {what} within {HEALTHY_SECONDS:.0f} s, got none")


if __name__ == "__main__":
    sys.exit(main())
