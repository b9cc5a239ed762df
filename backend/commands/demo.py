"""`surespan demo`: Label Studio, the backend and two sample projects on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from backend.commands.errors import reported
from backend.demo.install import ENVIRONMENT, install_label_studio
from backend.demo.run import Plan, run_demo
from backend.demo.screen import Screen


@click.command("demo")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="Port of Label Studio.")
@click.option(
    "--backend-port", type=click.IntRange(1, 65535), default=9090, show_default=True, help="Port of the backend."
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".surespan/demo"),
    show_default=True,
    help="Where the demo keeps everything: both databases, logs, passwords.",
)
@click.option("--reset", is_flag=True, help="Forget an earlier demo: its labels, its thresholds, its users.")
@click.option("--once", is_flag=True, help="Stop as soon as everything is running.")
@click.option("--install-only", is_flag=True, help="Only install Label Studio; start nothing.")
@reported
def command(*, port: int, backend_port: int, directory: Path, reset: bool, once: bool, install_only: bool) -> None:
    """Run Label Studio, the backend and two sample projects on this machine.

    The first time installs Label Studio into an environment of its own (.surespan/label-studio-...). Ctrl-C stops
    everything; the next start continues where this one stopped.
    """
    screen = Screen()
    if install_only:
        with screen.working("Label Studio") as progress:
            install_label_studio(ENVIRONMENT, say=screen.say, progress=progress)
        screen.say(f"Label Studio is installed in {ENVIRONMENT}.")
        return
    run_demo(Plan(directory, ENVIRONMENT, port, backend_port, reset=reset, once=once), screen)
