"""libvirt's event loop, run by Trio.

libvirt asks its host program for four things: watch a descriptor, change a watch, run a timer, remove either. A process
gives libvirt one implementation of this for its whole lifetime, and libvirt calls it from any thread that happens to be
inside libvirt. So there is one `EVENT_LOOP` for the process, which works while `LibvirtLoop.run` runs in Trio.

Invariants:

- libvirt's callbacks run in the Trio thread only, one at a time;
- data that libvirt passes (`opaque`) is freed after its last use, and outside of its own callback;
- each watch waits on a duplicate of the descriptor, closed here: libvirt may close its own descriptor at any time, from
  any thread, and the number may soon stand for another file.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import libvirt
import trio

READABLE: int = libvirt.VIR_EVENT_HANDLE_READABLE
WRITABLE: int = libvirt.VIR_EVENT_HANDLE_WRITABLE

# A pair of C function and C data, which libvirt wraps; this module does not look inside.
Opaque = Any


@dataclass(eq=False)
class _Handle:
    callback: Callable[[int, int, int, Opaque], None]
    opaque: Opaque
    descriptor: int
    duplicate: int
    events: int
    removed: bool = False
    waiting: trio.CancelScope | None = None


@dataclass(eq=False)
class _Timer:
    callback: Callable[[int, Opaque], None]
    opaque: Opaque
    milliseconds: int
    removed: bool = False
    waiting: trio.CancelScope | None = None


@dataclass
class LibvirtLoop:
    """The process's event loop for libvirt. Use `EVENT_LOOP`."""

    _watches: dict[int, _Handle | _Timer] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _token: trio.lowlevel.TrioToken | None = None
    _nursery: trio.Nursery | None = None
    _registered: bool = False
    _to_free: list[_Handle | _Timer] = field(default_factory=list)
    """Handles and timers that were removed while no loop was running. They are freed later: freeing them at once would
    happen inside libvirt's own call, and deadlock."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve libvirt until cancelled. Connections must be opened after it started and closed before it ends."""
        if self._nursery is not None:
            raise RuntimeError("libvirt's event loop already runs in this process")
        self._register()
        try:
            async with trio.open_nursery() as nursery:
                with self._lock:
                    self._nursery = nursery
                    self._token = trio.lowlevel.current_trio_token()
                    left_over = list(self._watches)
                    to_free, self._to_free = self._to_free, []
                for removed in to_free:
                    _free(removed)
                for watch in left_over:
                    self._start(watch)
                task_status.started()
                await trio.sleep_forever()
        finally:
            with self._lock:
                self._nursery = self._token = None

    def soon(self, work: Callable[..., None], *arguments: object) -> bool:
        """Run `work` in the Trio thread; may be called from any thread. Returns False if the loop has ended."""
        with self._lock:
            token = self._token
        if token is None:
            return False
        try:
            token.run_sync_soon(work, *arguments)
        except trio.RunFinishedError:
            return False
        return True

    def statistics(self) -> dict[str, int]:
        with self._lock:
            handles = sum(isinstance(watch, _Handle) for watch in self._watches.values())
            return {"handles": handles, "timers": len(self._watches) - handles}

    def _register(self) -> None:
        if not self._registered:
            libvirt.virEventRegisterImpl(
                self._add_handle,
                self._update_handle,
                self._remove_watch,
                self._add_timer,
                self._update_timer,
                self._remove_watch,
            )
            self._registered = True

    # Called by libvirt, in any thread

    def _add_handle(
        self, descriptor: int, events: int, callback: Callable[[int, int, int, Opaque], None], opaque: Opaque
    ) -> int:
        return self._add(_Handle(callback, opaque, descriptor, os.dup(descriptor), events))

    def _update_handle(self, watch: int, events: int) -> None:
        with self._lock:
            handle = self._watches.get(watch)
            if isinstance(handle, _Handle):
                handle.events = events
        self.soon(self._wake, handle)

    def _add_timer(self, milliseconds: int, callback: Callable[[int, Opaque], None], opaque: Opaque) -> int:
        return self._add(_Timer(callback, opaque, milliseconds))

    def _update_timer(self, watch: int, milliseconds: int) -> None:
        with self._lock:
            timer = self._watches.get(watch)
            if isinstance(timer, _Timer):
                timer.milliseconds = milliseconds
        self.soon(self._wake, timer)

    def _remove_watch(self, watch: int) -> int:
        with self._lock:
            removed = self._watches.pop(watch, None)
        if removed is None:
            return -1
        removed.removed = True
        if not self.soon(self._wake, removed):
            with self._lock:
                self._to_free.append(removed)
        return 0

    def _add(self, watched: _Handle | _Timer) -> int:
        with self._lock:
            watch = next(self._ids)
            self._watches[watch] = watched
        self.soon(self._start, watch)
        return watch

    # Runs in the Trio thread

    def _start(self, watch: int) -> None:
        with self._lock:
            watched, nursery = self._watches.get(watch), self._nursery
        if nursery is None or watched is None:
            return
        if isinstance(watched, _Handle):
            nursery.start_soon(self._serve_handle, watch, watched, name=f"libvirt descriptor {watched.descriptor}")
        else:
            nursery.start_soon(self._serve_timer, watch, watched, name="libvirt timer")

    def _wake(self, watched: _Handle | _Timer | None) -> None:
        if watched is not None and watched.waiting is not None:
            watched.waiting.cancel()

    async def _serve_handle(self, watch: int, handle: _Handle) -> None:
        while not handle.removed:
            ready = 0
            with trio.CancelScope() as handle.waiting:
                ready = await _ready(handle.duplicate, handle.events)
            handle.waiting = None
            if handle.removed:
                break
            if due := ready & handle.events:
                handle.callback(watch, handle.descriptor, due, handle.opaque)
        _free(handle)

    async def _serve_timer(self, watch: int, timer: _Timer) -> None:
        while not timer.removed:
            with trio.CancelScope() as timer.waiting:
                await trio.sleep(math.inf if timer.milliseconds < 0 else timer.milliseconds / 1000)
            due = not timer.waiting.cancelled_caught
            timer.waiting = None
            if due and not timer.removed and timer.milliseconds >= 0:
                timer.callback(watch, timer.opaque)
        _free(timer)


def _free(watched: _Handle | _Timer) -> None:
    if isinstance(watched, _Handle):
        os.close(watched.duplicate)
    libvirt.virEventInvokeFreeCallback(watched.opaque)


async def _ready(descriptor: int, events: int) -> int:
    """Wait for one of the two events that libvirt uses; hang-up and error count as readable."""
    wanted = events & (READABLE | WRITABLE)
    if not wanted:
        await trio.sleep_forever()
    ready = 0
    async with trio.open_nursery() as nursery:

        async def wait(wait_for: Callable[[int], Any], event: int) -> None:
            nonlocal ready
            await wait_for(descriptor)
            ready |= event
            nursery.cancel_scope.cancel()

        if wanted & READABLE:
            nursery.start_soon(wait, trio.lowlevel.wait_readable, READABLE)
        if wanted & WRITABLE:
            nursery.start_soon(wait, trio.lowlevel.wait_writable, WRITABLE)
    return ready


EVENT_LOOP = LibvirtLoop()
