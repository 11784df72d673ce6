"""A seeded event loop for several simulated processes: virtual time, random order, nothing real.

Every callback belongs to one *life* of one process, known by the context it runs in. The loop picks at random which life goes next; within a life
callbacks keep asyncio's order, as in the real process (or lose it too, where the seed says so). Time stands while anybody can go on and then
jumps to the next timer. A life that is paused keeps its callbacks until it goes on; one that crashed never runs again, not even its `finally`
blocks. Threads, sockets and subprocesses do not exist here: whoever asks for one gets an error.

Why not one of the seeded loops there are (seedloop, simloom, simloop): they need Python 3.12, the product runs on 3.11; and none knows several processes on one
loop, each with clocks of its own, that stall and die apart from one another.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final

LIFE: Final[contextvars.ContextVar[Life | None]] = contextvars.ContextVar("simulated_life", default=None)


class Life:
    """One life of one process, from its start to its crash or end. Its clocks run on their own: `rate` is their drift, `skew` the wall's error."""

    __slots__ = ("born", "context", "dead", "incarnation", "name", "paused", "rate", "ready", "skew", "start")

    def __init__(self, name: str, incarnation: int, born: float, *, rate: float, skew: float, start: float) -> None:
        self.name = name
        self.incarnation = incarnation
        self.born = born
        self.rate = rate
        self.skew = skew
        self.start = start
        self.dead = False
        self.paused = False
        self.ready: deque[Handle] = deque()
        self.context = contextvars.Context()
        self.context.run(LIFE.set, self)

    def __repr__(self) -> str:
        return f"{self.name}.{self.incarnation}"

    def monotonic(self, now: float) -> float:
        """The life's own monotonic clock at a moment of the world."""
        return self.start + now * self.rate

    def moment(self, monotonic: float) -> float:
        """The moment of the world at which the life's monotonic clock shows this."""
        return (monotonic - self.start) / self.rate


class Handle:
    """What asyncio gets back for a callback: it can be cancelled."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "life", "shown")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context, life: Life
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.life = life
        self.is_cancelled = False
        self.shown = 0.0

    def cancel(self) -> None:
        """The callback is not called."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.is_cancelled

    def when(self) -> float:
        """For a timer: when it is due, on the life's clock."""
        return self.shown


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order whenever the seed is the same."""

    _number: int

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulationError(Exception):
    """The simulated program asked for what a simulation cannot give, or ran without end."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """See the module. `outside` is the life of the world's own callbacks: network, stores, clients; it never ends."""

    def __init__(self, random: Random, *, shuffled: bool) -> None:
        self._random = random
        self._shuffled = shuffled
        self.now = 0.0
        self.steps = 0
        self.outside = Life("world", 1, 0.0, rate=1.0, skew=0.0, start=0.0)
        self.current = self.outside
        self._runnable: list[Life] = []
        self._timers: list[tuple[float, int, Any, Any]] = []
        self._timer_number = 0
        self._tasks: list[SimulatedTask] = []
        self._task_number = 0
        self._between: list[tuple[int, int, Callable[[], None]]] = []
        self.on_error: Callable[[Life, dict[str, Any]], None] = lambda life, context: None
        self.is_closing = False
        self.world: Any = None
        """The world that runs here, for what stands in for the real one."""

    # --- what asyncio asks for ---

    def time(self) -> float:
        """The monotonic clock of whoever is running."""
        return self.current.monotonic(self.now)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None, **more: Any) -> SimulatedTask:
        if context is None:
            context = contextvars.copy_context()
        self._task_number += 1
        task = SimulatedTask.__new__(SimulatedTask)
        task._number = self._task_number
        task.__init__(coro, loop=self, name=name or "task", context=context)
        self._tasks.append(task)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        if context is None:
            context = contextvars.copy_context()
        life = context.get(LIFE) or self.outside
        handle = Handle(callback, args, context, life)
        self._put(handle, life)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        if context is None:
            context = contextvars.copy_context()
        life = context.get(LIFE) or self.outside
        handle = Handle(callback, args, context, life)
        handle.shown = when
        if not life.dead and not self.is_closing:
            self._timer_number += 1
            heapq.heappush(self._timers, (life.moment(when), self._timer_number, handle, None))
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise SimulationError("a simulated process has no threads")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_error(self.current, context)

    # --- what the world asks for ---

    def later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        """Call back after so many seconds of the world, outside of every process."""
        self._timer_number += 1
        heapq.heappush(self._timers, (self.now + seconds, self._timer_number, callback, args))

    def after_steps(self, steps: int, action: Callable[[], None]) -> None:
        """Do something between two steps, so many from now: also in the middle of what several lives are doing at one moment."""
        self._timer_number += 1
        heapq.heappush(self._between, (self.steps + steps, self._timer_number, action))

    def run_in(self, life: Life, callback: Callable[..., Any], *args: Any) -> None:
        """Call back inside a life, as soon as it is its turn."""
        self._put(Handle(callback, args, life.context.copy(), life), life)

    def task_in(self, life: Life, coroutine: Any, context: contextvars.Context | None = None) -> SimulatedTask:
        """Start a task inside a life."""
        return self.create_task(coroutine, context=life.context.copy() if context is None else context)

    def pause(self, life: Life) -> None:
        """Nothing of the life runs until `resume`; its timers expire all the same."""
        life.paused = True
        if life in self._runnable:
            self._runnable.remove(life)

    def resume(self, life: Life) -> None:
        """Let the life go on."""
        life.paused = False
        if life.ready and not life.dead and life not in self._runnable:
            self._runnable.append(life)

    def kill(self, life: Life) -> None:
        """Nothing of the life ever runs again."""
        life.dead = True
        life.ready.clear()
        if life in self._runnable:
            self._runnable.remove(life)

    def run(self, is_over: Callable[[], bool], *, until: float, max_steps: int) -> None:
        """Run until it is over or the world's time is `until`. Errors: `SimulationError` past `max_steps`."""
        ready_choice, choose = self._runnable, self._random.random
        events._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._forgotten_generator)
        between = self._between
        try:
            while not is_over():
                if not ready_choice:
                    if not self._timers or self._timers[0][0] > until:
                        self.now = until
                        return
                    self._advance()
                    continue
                self.steps += 1
                if between and between[0][0] <= self.steps:
                    self.current = self.outside
                    heapq.heappop(between)[2]()
                    continue
                if self.steps > max_steps:
                    raise SimulationError(f"more than {max_steps} steps")
                position = int(choose() * len(ready_choice)) if len(ready_choice) > 1 else 0
                life = ready_choice[position]
                ready = life.ready
                if self._shuffled and len(ready) > 1:
                    ready.rotate(-int(choose() * len(ready)))
                handle = ready.popleft()
                if not ready:
                    ready_choice[position] = ready_choice[-1]
                    ready_choice.pop()
                if handle.is_cancelled:
                    continue
                self.current = life
                try:
                    handle.context.run(handle.callback, *handle.args)
                except (KeyboardInterrupt, AssertionError):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio does: reported, and the loop goes on
                    self.on_error(life, {"message": "exception in callback", "exception": error})
        finally:
            self.current = self.outside
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(None)

    def close(self) -> None:
        """Let go of every task that is left, without any effect of it."""
        self.is_closing = True
        self._timers.clear()
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        events._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=lambda _: None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._sweep_away()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(None)
            sys.unraisablehook = hook

    def _sweep_away(self) -> None:
        while self._tasks:
            task = self._tasks.pop()
            if task.done():
                continue
            task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - asyncio's own switch
            coroutine: Any = task.get_coro()
            try:
                if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                    # What it was given and never began to wait for.
                    for value in list(coroutine.cr_frame.f_locals.values()):
                        if asyncio.iscoroutine(value):
                            value.close()
                coroutine.close()
            except BaseException:  # noqa: BLE001, S112 - what a dead process says while it is swept away is heard by nobody
                continue

    def _put(self, handle: Handle, life: Life) -> None:
        if life.dead or self.is_closing:
            return
        if not life.ready and not life.paused:
            self._runnable.append(life)
        life.ready.append(handle)

    def _advance(self) -> None:
        when, _, what, args = heapq.heappop(self._timers)
        self.now = max(self.now, when)
        if args is not None:
            self.current = self.outside
            what(*args)
        elif not what.is_cancelled:
            self._put(what, what.life)

    def _forgotten_generator(self, generator: Any) -> None:
        if not self.current.dead and not self.is_closing:
            self.call_soon(self.create_task, generator.aclose())
