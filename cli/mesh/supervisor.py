"""Starts a mesh, keeps it running, stops it within five seconds, and leaves nothing behind however it ends itself."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.connection import DEFAULT_URL
from cli.mesh.bus_program import bus_program
from cli.mesh.child import Child, ChildEnded
from cli.mesh.layout import Layout, layout_of
from cli.mesh.operator_file import embedded_adapters, named_variables, names_model_endpoints, write_default
from cli.mesh.plan import Component, Options, StopOrder, plan
from cli.mesh.replicas import Replicas
from cli.mesh.secrets import secret_files
from cli.mesh.state_file import MeshState, ProcessEntry, write_state
from services.common.errors import ConfigurationError

READY_SECONDS = 60.0
STOPPED_BY = {StopOrder.FRONT: 0.8, StopOrder.RUNS: 3.0, StopOrder.BACK: 4.3, StopOrder.BUS: 4.7}
"""Seconds after the stop began by which each group has to have ended; under the five that are promised."""
KILL_SECONDS = 0.2
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
STEADY_SECONDS = 10.0
"""A process that ran this long is restarted without a pause."""

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_CONFIGURATION = 2
LOOPBACK = ("127.0.0.1", "::1", "localhost")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `harness up` was given."""

    host: str
    port: int
    data_dir: Path
    config_file: Path | None
    replicas: Replicas = field(default_factory=Replicas)
    store_url: str = field(default="", repr=False)


async def run_mesh(options: UpOptions, *, say: Say, on_ready: Callable[[str], Awaitable[None]] | None = None) -> int:
    """Runs a mesh until SIGINT or SIGTERM. Returns the exit code: 0 stopped, 1 a process would not start, 2 configuration.

    `on_ready` is called once with the base URL, and cancelled if the mesh is stopped meanwhile.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        _refuse_open_door(options.host)
        layout = layout_of(options.data_dir)
        layout.create(facades=len(options.replicas.of("sessions")), tool_facades=len(options.replicas.of("runs")))
        with _locked(layout), Lifeline() as lifeline:
            for port in options.replicas.ports(options.port):
                _refuse_taken_port(options.host, port)
            mesh = Mesh(layout, _components(layout, options), lifeline, say)
            return await mesh.run(stop, on_ready)
    except ConfigurationError as error:
        say(f"configuration error: {error}")
        return EXIT_CONFIGURATION


class Mesh:
    """The processes of one mesh."""

    def __init__(self, layout: Layout, components: list[Component], lifeline: Lifeline, say: Say) -> None:
        self._layout = layout
        self._components = components
        self._lifeline = lifeline
        self._say = say
        self._children: dict[str, Child] = {}
        self._restarts: dict[str, int] = {}

    async def run(self, stop: asyncio.Event, on_ready: Callable[[str], Awaitable[None]] | None) -> int:
        """Starts everything, waits for the stop, stops everything."""
        began = time.monotonic()
        stopped = asyncio.create_task(stop.wait())
        starting = asyncio.create_task(self._start_all())
        work: list[asyncio.Task[None]] = []
        try:
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                self._say("stopping")
                return EXIT_OK
            starting.result()
            urls = " ".join(url for component in self._components if (url := self._url_of(component)))
            self._say(f"ready in {time.monotonic() - began:.1f} s: {urls} (documentation at {self._url}/docs)")
            if self._url != DEFAULT_URL:
                self._say(f"other commands find it with HARNESS_URL={self._url}")
            work = [asyncio.create_task(self._keep_running(component)) for component in self._components]
            if on_ready is not None:
                work.append(asyncio.create_task(_call(on_ready, self._url)))
            await _first_failure_or(stopped, work)
            self._say("stopping")
            return EXIT_OK
        except ChildEnded as error:
            self._report(error)
            return EXIT_CONFIGURATION if error.code == EXIT_CONFIGURATION else EXIT_FAILURE
        except TimeoutError:
            self._say(f"the mesh was not ready within {READY_SECONDS:g} s: see the logs in {self._layout.logs}")
            return EXIT_FAILURE
        finally:
            await _cancel([starting, stopped, *work])
            await self._stop_all()
            self._layout.state_file.unlink(missing_ok=True)

    async def _start_all(self) -> None:
        self._say(f"starting {len(self._components)} processes; their logs are in {self._layout.logs}")
        bus, *others = self._components
        await self._start(bus)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_outcome(self._start(component))) for component in others]
        for failure in (task.result() for task in tasks):
            if failure is not None:
                raise failure

    async def _start(self, component: Component) -> Child:
        before = self._children.get(component.name)
        if before is not None:
            component = component.at(before.address)
        child = await Child.start(component, self._layout.logs / f"{component.name}.log", self._lifeline.reading)
        self._children[component.name] = child
        self._write_state()
        await child.ready(READY_SECONDS)
        self._write_state()
        return child

    async def _keep_running(self, component: Component) -> None:
        """Restarts the process whenever it ends; each time soon again after the last, with a longer pause."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            code = await self._children[component.name].ended()
            self._write_state()
            if time.monotonic() - began > STEADY_SECONDS:
                pause = FIRST_PAUSE
            self._say(f"{component.name} ended with exit code {code}; starting it again")
            while not await self._restarted(component):
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _restarted(self, component: Component) -> bool:
        self._restarts[component.name] = self._restarts.get(component.name, 0) + 1
        try:
            await self._start(component)
        except ChildEnded as error:
            self._report(error)
            return False
        except TimeoutError:
            self._say(f"{component.name} was not ready within {READY_SECONDS:g} s; killing it")
            self._children[component.name].signal(signal.SIGKILL)
            await self._children[component.name].ended()
            return False
        self._say(f"{component.name} is back")
        return True

    async def _stop_all(self) -> None:
        began = time.monotonic()
        for order in StopOrder:
            group = [child for child in self._children.values() if child.component.stop_order is order]
            if any(child.component.lifeline for child in group):
                # Sandboxes outlive their service; here it is told that it has to remove what is left of them before it ends.
                self._lifeline.end()
            for child in group:
                child.signal(signal.SIGTERM)
            await _wait_ended(group, max(0.0, began + STOPPED_BY[order] - time.monotonic()))
        left = [child for child in self._children.values() if child.running]
        for child in left:
            self._say(f"{child.component.name} did not stop in time; killed")
            child.signal(signal.SIGKILL)
        await _wait_ended(left, KILL_SECONDS)

    def _report(self, error: ChildEnded) -> None:
        self._say(f"{error}; the last it printed:")
        for line in error.tail:
            self._say(f"  {line}")

    @property
    def _url(self) -> str:
        return f"http://{self._children['gateway'].address}"

    def _url_of(self, component: Component) -> str:
        """Where a gateway that has been started serves; empty for everything else."""
        child = self._children.get(component.name)
        return f"http://{child.address}" if child is not None and component.service == "gateway" else ""

    def _write_state(self) -> None:
        entries = [
            ProcessEntry(
                name=component.name,
                service=component.service,
                replica=component.replica,
                pid=child.pid if child is not None and child.running else 0,
                address=child.address if child is not None else component.address,
                restarts=self._restarts.get(component.name, 0),
                url=self._url_of(component),
            )
            for component in self._components
            for child in [self._children.get(component.name)]
        ]
        url = self._url if "gateway" in self._children else ""
        write_state(self._layout.state_file, MeshState(os.getpid(), url, entries))


def _components(layout: Layout, options: UpOptions) -> list[Component]:
    config_file = options.config_file or write_default(layout)
    tokens, credentials = named_variables(config_file)
    return plan(
        layout,
        secret_files(layout.secrets),
        Options(
            options.host,
            options.port,
            config_file,
            embedded_adapters(config_file, layout),
            bus_program(),
            options.replicas,
            token_variables=tokens,
            credential_variables=credentials,
            model_egress=names_model_endpoints(config_file),
            store_url=options.store_url,
        ),
    )


def _refuse_open_door(host: str) -> None:
    """I32: off loopback nothing starts without a token of one's own."""
    given = any(os.environ.get(name) for name in ("HARNESS_TOKEN", "HARNESS_API_TOKENS", "HARNESS_API_TOKENS_FILE"))
    if host not in LOOPBACK and not given:
        raise ConfigurationError(
            f"HARNESS_TOKEN is not set: it is required to listen on {host}, which is not loopback."
        )


def _refuse_taken_port(host: str, port: int) -> None:
    """Says at once what the gateway would say at the end of the start. The gateway decides: the port may be taken in between."""
    if not port:
        return
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        # A name that cannot be resolved has a number of its own, and the text for it.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {reason}. Choose another --port (0: any free one) or --host."
        ) from None


@contextmanager
def _locked(layout: Layout) -> Generator[None]:
    with layout.lock_file.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"a mesh is running on {layout.data} already: see `harness status`, or choose another --data-dir."
            ) from None
        yield


class Lifeline:
    """A pipe whose writing end only this process holds: its reader sees the end of the mesh, however it comes."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()

    def end(self) -> None:
        """The mesh ends: whatever hangs on the lifeline does too. Idempotent."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        os.close(self.reading)


async def _call(on_ready: Callable[[str], Awaitable[None]], url: str) -> None:
    await on_ready(url)


async def _outcome(start: Awaitable[Child]) -> Exception | None:
    """Lets every start end before the first failure is told: nothing is left half-started and unknown."""
    try:
        await start
    except (ChildEnded, TimeoutError, OSError) as error:
        return error
    return None


async def _first_failure_or(stopped: asyncio.Task[bool], work: list[asyncio.Task[None]]) -> None:
    pending: set[asyncio.Task[None]] = set(work)
    while pending and not stopped.done():
        done, _ = await asyncio.wait({stopped, *pending}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending & done:
            task.result()
        pending -= done
    await stopped


async def _wait_ended(children: list[Child], seconds: float) -> None:
    if children:
        await asyncio.wait([asyncio.create_task(child.ended()) for child in children], timeout=seconds)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
