"""The demonstration from start to end: what is started is stopped, whatever happens in between."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from backend.demo.errors import DemoError
from backend.demo.install import install_label_studio
from backend.demo.label_studio import START_SECONDS, start_label_studio
from backend.demo.processes import LOOPBACK, Child, is_free
from backend.demo.sample import KITCHEN, NAMES, Sample, SampleProjects
from backend.demo.screen import Screen
from backend.demo.service import START_SECONDS as SERVICE_SECONDS
from backend.demo.service import connect, service_variables, start_service, wait_until_published
from backend.demo.state import load_state, save_state, sole_use


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    directory: Path
    environment: Path
    port: int
    backend_port: int
    reset: bool = False
    once: bool = False


class _Stopped(BaseException):
    """Somebody asked us to stop; not an Exception, so that nothing on the way takes it for a failure."""


def run_demo(plan: Plan, screen: Screen) -> None:
    """Run the demonstration until Ctrl-C, SIGTERM or, with `once`, until it stands.

    Raises:
        DemoError: when something is in the way; everything that was started has been stopped then.
    """
    with _stop_on_signals(), ExitStack() as stack:
        try:
            _run(plan, screen, stack)
        except _Stopped:
            screen.say("Stopping ...")
            stack.close()
            screen.say(f"Stopped. Everything is kept in {plan.directory}; the same command continues from there.")


def _run(plan: Plan, screen: Screen, stack: ExitStack) -> None:
    stack.enter_context(sole_use(plan.directory, reset=plan.reset))
    _check_ports(plan)
    with screen.working("Label Studio") as progress:
        command = install_label_studio(plan.environment, say=screen.say, progress=progress)
    _check_ports(plan)  # an installation takes minutes
    state = load_state(plan.directory)
    url = f"http://{LOOPBACK}:{plan.port}"
    variables = service_variables(plan.directory, state, url=url, port=plan.backend_port)
    server = _started(
        stack,
        start_label_studio(
            command,
            port=plan.port,
            data=plan.directory / "label-studio",
            account=state.account,
            log=plan.directory / "label-studio.log",
        ),
    )
    service = _started(stack, start_service(plan.directory, variables))
    with screen.working("starting the backend") as progress:
        service.wait_until_up(SERVICE_SECONDS, progress=progress)
    with screen.working("starting Label Studio") as progress:
        server.wait_until_up(START_SECONDS, progress=progress)
    with closing(SampleProjects(url, state.token)) as samples:
        names = _existing(screen, samples, state.project, NAMES)
        state = save_state(plan.directory, replace(state, project=names))
        kitchen = _existing(screen, samples, state.kitchen, KITCHEN)
        state = save_state(plan.directory, replace(state, kitchen=kitchen))
        uids = {number: samples.uid(number) for number in (names, kitchen)}
        for number in uids:
            with screen.working(f"connecting project {number}"):
                said = connect(plan.directory, variables, number)
            screen.connected(said)
        with screen.working("predicting (the first time compiles the decoder, half a minute)") as progress:
            for uid in uids.values():
                wait_until_published(variables, uid, url=service.url, progress=progress)
            predicted = samples.retrieve_predictions(names)
    screen.ready(url, state, backend=service.url, uid=uids[names], predicted=predicted, directory=plan.directory)
    if not plan.once:
        _watch([server, service])


def _existing(screen: Screen, samples: SampleProjects, number: int | None, sample: Sample) -> int:
    """Return the number of a sample project, made now unless it is there."""
    if number is not None and samples.exists(number):
        return number
    with screen.working("making a sample project"):
        made = samples.create(sample)
    screen.say(f"Created project {made} with {sample.contents}.")
    return made


def _check_ports(plan: Plan) -> None:
    if plan.port == plan.backend_port:
        raise DemoError(f"expected two different ports, got {plan.port} twice: change --port or --backend-port")
    wanted = {"--port": ("Label Studio", plan.port), "--backend-port": ("the backend", plan.backend_port)}
    for option, (name, port) in wanted.items():
        if not is_free(port):
            raise DemoError(
                f"port {port}, meant for {name}, is in use by another program: stop that one, or choose another port "
                f"with {option}, for example {option} {_next_free(port)}"
            )


def _next_free(port: int) -> int:
    return next(each for each in range(port + 1, port + 1000) if is_free(each))


def _started(stack: ExitStack, child: Child) -> Child:
    stack.callback(child.stop)
    return child


def _watch(children: list[Child]) -> None:
    while True:
        for child in children:
            child.check()
        time.sleep(0.5)


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Turn the first signal into an exception; later ones are ignored, because stopping is under way and bounded."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
        for each in asked:
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped

    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
    for each in asked:
        before[each] = signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
