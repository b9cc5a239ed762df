"""All checks, one after the other; none stops the others, and nothing is changed anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backend.doctor.database import check_database, check_inbox, check_scoring, check_worker
from backend.doctor.findings import Finding, fail, skipped
from backend.doctor.machine import check_cache, check_disk, check_model, check_settings
from backend.doctor.projects import ProjectChecks
from backend.doctor.server import check_address, check_server, check_token
from backend.doctor.service import check_service
from backend.errors import BackendError
from backend.labelstudio.client import LabelStudio
from backend.settings import Settings
from backend.store import Store
from backend.store.projects import list_projects
from backend.store.state import CONNECTION, get_state


def diagnose(
    settings: Settings,
    *,
    projects: Sequence[int] = (),
    service_url: str | None = None,
    load_model: bool = True,
) -> Iterator[Finding]:
    """Yield what is found, in the order of looking.

    Args:
        projects: numbers of Label Studio's projects; without any, all that are connected to the database.
        service_url: where the service is; without it, where the settings put it on this machine.
        load_model: load the model, which takes seconds.
    """
    yield from check_settings(settings)
    findings, store = check_database(settings)
    yield from findings
    try:
        yield from check_disk(settings)
        yield check_cache()
        model, classes = check_model(settings, load=load_model)
        yield model
        numbers = list(projects)
        if store is not None:
            yield from check_worker(store, settings)
            yield check_inbox(store)
            yield check_scoring(store)
            numbers = numbers or connected(store)
        yield from check_service(
            settings,
            service_url or settings.own_url,
            wanted=bool(numbers or service_url or settings.label_studio_url),
        )
        server, reachable = check_server(settings)
        yield server
        token, client = check_token(settings, reachable=reachable)
        yield token
        try:
            checks = [
                ProjectChecks(number, settings, client=client, store=store, classes=classes) for number in numbers
            ]
            yield from _addresses(client, checks, service_url or settings.own_url, given=service_url is not None)
            for check in checks:
                yield from check.run()
            if not checks:
                yield skipped("project", "no project is connected", "run `surespan connect --project N`")
        finally:
            if client is not None:
                client.close()
    except BackendError as error:  # the database or the server went away between two checks
        yield fail("database", f"the checks were interrupted: {error}", "try again when it is available")
    finally:
        if store is not None:
            store.close()


def connected(store: Store) -> list[int]:
    """Return the numbers of the projects that this database has connected."""
    with store.read() as session:
        return [
            int(each.key)
            for each in list_projects(session)
            if each.key.isdigit() and (get_state(session, each.id, CONNECTION) or {}).get("backend")
        ]


def _addresses(
    client: LabelStudio | None, checks: Sequence[ProjectChecks], own: str, *, given: bool
) -> Iterator[Finding]:
    if client is None:
        yield skipped("address", "Label Studio cannot be asked", "set LABEL_STUDIO_URL and LABEL_STUDIO_API_KEY")
        return
    connections = [each.local.connection or {} for each in checks]
    known = [str(each["backend_url"]) for each in connections if each.get("backend_url")]
    for url in dict.fromkeys([own] if given or not known else known):
        yield check_address(client, url)
