"""What can be seen without any server: settings, disk, the place of compiled code, the model."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from backend.doctor.findings import Finding, fail, listed, ok, skipped, warn
from backend.errors import BackendError, InvalidSetting
from backend.http.security import bind_address, is_loopback
from backend.settings import Settings, database_url
from backend.tagger.configured import configured_header, load_configured
from backend.tagger.errors import TaggerError
from conformal import warm_up
from conformal.trellis.kernels.kbest import enumerate_best

_MEGABYTE = 1_000_000
PRIVATE = "surespan-kernels-"  # the temporary directory that conformal.trellis.jit falls back to


def check_settings(settings: Settings) -> list[Finding]:
    """Look at settings that are good one by one and do not go together."""
    findings: list[Finding] = []
    try:
        address = bind_address(settings)
    except InvalidSetting as error:
        name, _, rest = str(error).partition(": ")
        return [fail("settings", f"{name}: {rest}", "set both BASIC_AUTH_USER and BASIC_AUTH_PASS, or neither")]
    sqlite = database_url(settings.database_url).get_backend_name() == "sqlite"
    if sqlite and settings.workers > 1:
        findings.append(
            fail(
                "settings",
                f"WORKERS is {settings.workers}, but SQLite allows one process",
                "set WORKERS=1, or a PostgreSQL address in SURESPAN_DATABASE_URL",
            )
        )
    if settings.basic_auth_user and settings.webhook_secret is None:
        findings.append(
            fail(
                "settings",
                "BASIC_AUTH_USER is set and SURESPAN_WEBHOOK_SECRET is not: Label Studio sends no basic auth to "
                "/webhook, so every event is refused",
                "set SURESPAN_WEBHOOK_SECRET for the service, then run `surespan connect` again",
            )
        )
    if settings.label_studio_url is None and settings.label_studio_api_key is not None:
        findings.append(
            warn("settings", "LABEL_STUDIO_API_KEY is set, LABEL_STUDIO_URL is not", "set LABEL_STUDIO_URL as well")
        )
    if settings.sync_every_minutes == 0:
        findings.append(
            warn(
                "settings",
                "SURESPAN_SYNC_EVERY_MINUTES is 0: what webhooks do not deliver never comes in by itself",
                "unset it, or run `surespan sync` regularly",
            )
        )
    if findings:
        return findings
    who = "credentials required" if settings.basic_auth_user else "no credentials, so this machine only"
    shown = "loopback" if is_loopback(address) else address
    return [ok("settings", f"consistent; the service listens on {shown}, port {settings.port} ({who})")]


def check_disk(settings: Settings) -> list[Finding]:
    """Look at the free space wherever something is written."""
    places = {"temporary files": Path(tempfile.gettempdir())}
    kept = kernel_cache()
    if kept is not None:
        places["compiled code"] = kept
    url = database_url(settings.database_url)
    if url.get_backend_name() == "sqlite":
        places["the database"] = Path(str(url.database)).absolute()
    findings: list[Finding] = []
    free: dict[str, int] = {}
    for name, path in places.items():
        there = _existing(path)
        try:
            free[name] = shutil.disk_usage(there).free // _MEGABYTE
        except OSError as error:
            findings.append(fail("disk", f"{name}: {there} cannot be checked ({error.strerror})", "mount it"))
            continue
        if free[name] < settings.min_free_mb:
            findings.append(
                fail(
                    "disk",
                    f"{free[name]:,} MB free for {name} ({there}), less than the {settings.min_free_mb:,} MB of "
                    "SURESPAN_MIN_FREE_MB",
                    "free space, or move it (SURESPAN_DATABASE_URL, NUMBA_CACHE_DIR, TMPDIR)",
                )
            )
    if not findings:
        findings.append(ok("disk", "; ".join(f"{size:,} MB free for {name}" for name, size in free.items())))
    if url.get_backend_name() != "sqlite":
        findings.append(skipped("disk", "the disk of a PostgreSQL server cannot be seen from here: watch it there"))
    return findings


def check_cache() -> Finding:
    """Look where compiled kernels are kept: without a place, every process compiles for half a minute."""
    asked = os.environ.get("NUMBA_CACHE_DIR")
    kept = kernel_cache()
    if kept is None:
        return fail(
            "cache",
            "no directory can keep compiled code: every process compiles for half a minute before it predicts",
            "name a writable directory in NUMBA_CACHE_DIR",
        )
    if asked and not kept.is_relative_to(Path(asked).absolute()):
        return fail(
            "cache",
            f"NUMBA_CACHE_DIR is {asked}, which cannot be written; compiled code goes to {kept}",
            "make that directory writable for the user that runs the service, or name another one",
        )
    if not _writable(kept):
        return fail("cache", f"{kept} cannot be written", "name a writable directory in NUMBA_CACHE_DIR")
    if kept.is_relative_to(tempfile.gettempdir()) and any(part.startswith(PRIVATE) for part in kept.parts):
        return warn(
            "cache",
            f"compiled code is kept in a temporary directory ({kept}): a restart of the machine removes it",
            "name a permanent directory in NUMBA_CACHE_DIR",
        )
    return ok("cache", f"compiled code is kept in {kept}")


def kernel_cache() -> Path | None:
    """Return where numba keeps the compiled decoder, as numba itself says; None where it cannot."""
    path = enumerate_best.stats.cache_path  # type: ignore[attr-defined]  # numba's, not in the function's type
    return None if path is None else Path(path).absolute()


def check_model(settings: Settings, *, load: bool) -> tuple[Finding, tuple[str, ...] | None]:
    """Load the model and predict a word; returns its classes too, if they can be known.

    Args:
        load: without it only the model's header is read.
    """
    name = settings.model or "the bundled model"
    header = configured_header(settings)
    if not load:
        if header is None:
            return skipped("model", f"{name}: not loaded, and nothing is known about it otherwise"), None
        return skipped("model", f"{header.name}: not loaded; classes {listed(header.classes)}"), header.classes
    begun = time.perf_counter()
    remedy = "correct SURESPAN_MODEL (a folder, or a hub id that can be reached); leave it empty for the bundled model"
    try:
        tagger = load_configured(settings)
        warm_up()
        tagger.potentials(["Warm."])
    except (TaggerError, BackendError, OSError) as error:
        return fail("model", f"{name}: {error}", remedy), None
    except Exception as error:  # noqa: BLE001 - whatever a foreign checkpoint does, the other checks go on
        return fail("model", f"{name}: loading ended in {type(error).__name__}: {str(error)[:200]}", remedy), None
    seconds = time.perf_counter() - begun
    classes = tagger.space.classes
    said = f"{tagger.name}@{tagger.hash[:8]} loads in {seconds:.1f} s; classes {listed(classes)}"
    return ok("model", said), classes


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path if path.is_dir() else path.parent


def _writable(directory: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=_existing(directory)):
            return True
    except OSError:
        return False
