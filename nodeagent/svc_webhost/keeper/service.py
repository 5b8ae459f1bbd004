"""One service that the keeper holds: a state machine, moved by the end of its process, by time, and by requests.

    RUNNING   its process runs
    STOPPING  its stop signal was sent; when time is up, its whole group is killed
    CLEARING  its process ended, and what it left behind is killed; goes on when nothing is left
    WAITING   it ended by itself and is started when its back-off is over
    RESTING   it is on demand, and started when somebody connects

`definition` is the desired service, or None once it is to be stopped; the process may still be that of an earlier
definition. A caller is answered when the desired state is reached, or could not be.

A second process on the same socket while the first one drains was rejected (see the package): there is one process at
a time, and CLEARING comes between any two, so that nothing of the old one writes to what the new one opens.

A stop has no record on disk. If the keeper is killed while it stops a service, the successor finds it running, and the
launcher, which got no answer, sends the stop again.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from svc_webhost.keeper import children, sockets
from svc_webhost.keeper.children import Process
from svc_webhost.keeper.definition import Definition, Limits, Port, RefusedError, Socket, check, parse, wire
from svc_webhost.keeper.groups import Group, Hierarchies

RUNNING, STOPPING, CLEARING, WAITING, RESTING = "running", "stopping", "clearing", "waiting", "resting"

_STEADY = 10.0
"""Seconds. A service that ran for this long has not failed at its start: its pauses start at `_BACK_OFF` again."""
# Seconds. The pause is doubled after each further failure, up to the longest: so a service that cannot start does not
# keep a processor busy, and is back within half a minute after its cause was repaired.
_BACK_OFF = 0.1
_LONGEST_BACK_OFF = 30.0
_LOOK_AGAIN = 0.02
"""Seconds between two checks. Killed processes are gone within a few milliseconds, but there is no event for it."""

Answer = Callable[[dict[str, Any] | RefusedError], None]
"""Gives the caller the status, or the reason for a refusal; called once."""


class ManagedService:
    def __init__(self, name: str, folder: str, hierarchies: Hierarchies, selector: selectors.BaseSelector) -> None:
        self.name = name
        self.phase = WAITING
        self.due = math.inf
        """When to call `act`, on the monotonic clock."""
        self.definition: Definition | None = None
        self.process: Process | None = None
        self._runs: Definition | None = None
        """The definition with which its process was started."""
        self._path = os.path.join(folder, f"{name}.json")
        self._hierarchies = hierarchies
        self._selector = selector
        self._group = Group()
        self._listening: dict[Socket | Port, socket.socket] = {}
        self._answers: list[Answer] = []
        self._asked = True
        """Whether its process ends because of a request and not by itself."""
        self._since = 0.0
        self._began = -math.inf
        self._failures = 0
        self._restarts = 0
        self._last_exit: str | None = None

    @property
    def gone(self) -> bool:
        return self.definition is None and self.phase == WAITING

    def ensure(self, definition: Definition, answer: Answer) -> None:
        # Checked before anything changes: if the definition cannot be started, it is refused, and the old process
        # continues.
        check(definition)
        same = self.definition == definition
        if not same:
            self._failures = 0
        self.definition = definition
        if self.phase in (RUNNING, RESTING) and same:
            answer(self.status())
            return
        # If the definition is the same and the service waits after a failure, it is started now: the request is a
        # reason to try.
        self._answers.append(answer)
        self._begin_change()

    def stop(self, answer: Answer) -> None:
        self._answers.append(answer)
        self.definition = None
        self._begin_change()

    def restart(self, answer: Answer) -> None:
        """Replaces the process, as a changed definition does. A service that does not run is left as it is."""
        if self.phase == RUNNING:
            self._begin_stop()
        if self.phase in (STOPPING, CLEARING):
            self._answers.append(answer)
        else:
            answer(self.status())

    def rest(self, answer: Answer) -> None:
        if self.definition is None or not self.definition.on_demand:
            raise RefusedError(f"{self.name} is not started on demand.")
        if self.phase == RUNNING:
            self._begin_stop()
        if self.phase in (STOPPING, CLEARING):
            self._answers.append(answer)
        else:
            answer(self.status())

    def limit(self, group: str, limits: Limits) -> None:
        """Records the limits in the definition. The process continues to run; `Hierarchies` limits its group."""
        if self.definition is None or self.definition.limit_group != group:
            return
        # `_runs` keeps the old limits. Nothing compares the two, so the process is not replaced because of a new limit.
        self.definition = self.definition._replace(limits=limits)
        if self.phase in (RUNNING, RESTING):
            self._record(self.definition, self.process)

    def signal(self, number: int) -> None:
        if self.phase != RUNNING or self.process is None:
            raise RefusedError(f"{self.name} does not run.")
        self.process.signal(number)

    def status(self) -> dict[str, Any]:
        running = self.phase == RUNNING
        return {
            "running": running,
            "pid": self.process.pid if running and self.process else None,
            "since": self._since if running else None,
            "restarts": self._restarts,
            "last_exit": self._last_exit,
            "weaker_limits": self._group.weaker,
        }

    def adopt(self) -> None:
        """Take over what an earlier keeper recorded: its process and sockets. If the process has ended, it is
        started."""
        with open(self._path) as file:
            state = json.load(file)
        definition = self.definition = parse(state["definition"])
        if not state["pid"]:
            # The service was resting: no process had its sockets, so they were closed with the earlier keeper and are
            # bound again.
            self.due = 0.0
            return
        process = children.find_process(state["pid"], state["started"]) if state["boot"] == boot() else None
        # The session is used only if the process still runs: otherwise its number may belong to a stranger by now,
        # whose processes would be killed.
        self._group = Group(state["groups"], process.pid if process else 0, state["weaker"])
        self._since, self._restarts, self._asked = state["since"], state["restarts"], False
        # If the program ended while no keeper was running, a child that it has left behind may still hold the sockets.
        holders = [*([process.pid] if process else []), *self._group.processes()]
        for wanted, inode in zip(definition.listening, state["inodes"], strict=True):
            taken = (children.duplicated_socket(holder, inode) for holder in holders)
            held = next((one for one in taken if one is not None), None)
            if held is not None:
                self._listening[wanted] = held
        if process is None:
            self.phase, self.due = CLEARING, 0.0
            return
        self._watch(process, definition)
        if len(self._listening) < len(definition.listening):
            # The program has closed one of its sockets. Connections to it are refused until it is bound again, and only
            # a new process can get the new socket.
            self._begin_stop()

    def act(self) -> None:
        """Called when `due` has come."""
        if self.phase == STOPPING:
            # `_ended` follows when the pidfd reports the end. The process is killed individually as well: without
            # control groups the group is a session, which the process may have left.
            self._group.kill()
            if self.process is not None:
                self.process.signal(signal.SIGKILL)
            self.due = math.inf
        elif self.phase == CLEARING:
            if not self._cleared():
                # Killed again in each round: without pids.max a process may have forked between the listing and the
                # kill.
                self._group.kill()
                self.due = time.monotonic() + _LOOK_AGAIN
            elif self.definition is None or self._asked:
                self._settle()
            else:
                # The process has ended by itself. The start time of an adopted process is unknown, so it counts as
                # having run steadily.
                if time.monotonic() - self._began >= _STEADY:
                    self._failures = 0
                self._wait()
        elif self.phase == WAITING:
            self._settle()

    def _wait(self) -> None:
        self.phase = WAITING
        self.due = time.monotonic() + min(_BACK_OFF * 2**self._failures, _LONGEST_BACK_OFF)
        # 0.1 s * 2**9 already exceeds the longest pause; without a bound the power would overflow a float.
        self._failures = min(self._failures + 1, 16)
        with suppress(OSError):
            # The log's disk may be full. No service waits for the log.
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            print(f"{when} {self.name}: {self._last_exit}; it is started again", file=sys.stderr, flush=True)

    def _begin_change(self) -> None:
        """Move towards `definition`. In STOPPING and CLEARING the process is already being ended: `act` continues from
        there."""
        if self.phase == RUNNING:
            self._begin_stop()
        elif self.phase == RESTING:
            self._wake()
            self._settle()
        elif self.phase == WAITING:
            self._settle()

    def _settle(self) -> None:
        """There is no process: start one, rest until somebody connects, or release the sockets and the state file."""
        result: dict[str, Any] | RefusedError
        if self.definition is None:
            for wanted in [*self._listening]:
                sockets.release(self._listening.pop(wanted), wanted)
            # The state file is removed last: a keeper that is killed before this leaves the file, and the next keeper
            # starts the service until it is stopped again.
            if os.path.exists(self._path):
                os.unlink(self._path)
            self.phase, self.due = WAITING, math.inf
            result = self.status()
        else:
            result = self._try(self._rest if self.definition.on_demand else self._start, self.definition)
        answers, self._answers = self._answers, []
        for answer in answers:
            answer(result)

    def _try(self, begin: Callable[[Definition], None], definition: Definition) -> dict[str, Any] | RefusedError:
        try:
            begin(definition)
        except (RefusedError, OSError) as error:
            self._last_exit = str(error)
            # The group was created before the start failed. Nothing runs in it, so it is removed at once.
            self._cleared()
            self._wait()
            return RefusedError(f"{error} It is tried again.")
        return self.status()

    def _bind(self, definition: Definition) -> None:
        for wanted in self._listening.keys() - set(definition.listening):
            sockets.release(self._listening.pop(wanted), wanted)
        for wanted in definition.listening:
            if wanted not in self._listening:
                self._listening[wanted] = sockets.bind_for_service(wanted)
        # The flag belongs to the open file, which the keeper shares with the program. nginx does not make inherited
        # sockets non-blocking: if two workers wake for one connection, the second would hang in accept(2), and all its
        # visitors would hang as well.
        for listening in self._listening.values():
            listening.setblocking(not definition.nonblocking)

    def _rest(self, definition: Definition) -> None:
        self._bind(definition)
        self._record(definition, None)
        for listening in self._listening.values():
            self._selector.register(listening, selectors.EVENT_READ, self._demanded)
        self.phase, self.due = RESTING, math.inf

    def _wake(self) -> None:
        for listening in self._listening.values():
            self._selector.unregister(listening)
        self.phase, self.due = WAITING, math.inf

    def _demanded(self) -> None:
        """Somebody connects to a socket of the service, and waits."""
        # Two sockets of one service may be ready in the same round of the selector: then the first call has woken the
        # service already.
        if self.phase == RESTING and self.definition is not None:
            self._wake()
            self._try(self._start, self.definition)

    def _start(self, definition: Definition) -> None:
        self._bind(definition)
        if not self._asked:
            self._restarts += 1
        self._began, self._since = time.monotonic(), time.time()
        self._group = self._hierarchies.group(definition)
        listening = [self._listening[wanted] for wanted in definition.listening]
        process = children.start(definition, self._group, listening, lambda begun: self._record(definition, begun))
        self._watch(process, definition)

    def _watch(self, process: Process, definition: Definition) -> None:
        self.process, self._runs = process, definition
        self._selector.register(process.descriptor, selectors.EVENT_READ, self._ended)
        self.phase, self.due = RUNNING, math.inf

    def _begin_stop(self) -> None:
        assert self.process is not None, "what runs has a process"
        assert self._runs is not None, "and a definition that it was started by"
        self.phase, self.due = STOPPING, time.monotonic() + self._runs.stop_seconds
        self.process.signal(self._runs.stop_signal)

    def _ended(self) -> None:
        """Called when the process has ended: it is a zombie, or gone if an earlier keeper was its parent."""
        assert self.process is not None, "what is not there does not end"
        self._asked = self.phase == STOPPING
        # Done before the process is reaped: until then its number, which is also the session's, cannot pass to another
        # process.
        self._group.kill()
        self._selector.unregister(self.process.descriptor)
        self._last_exit = self.process.ended()
        self.process = self._runs = None
        self.phase = CLEARING
        self.act()

    def _cleared(self) -> bool:
        if self._group.processes():
            return False
        try:
            self._group.remove()
        except OSError:
            return False
        return True

    def _record(self, definition: Definition, process: Process | None) -> None:
        state = {
            "boot": boot(),
            "definition": wire(definition),
            "pid": process.pid if process else 0,
            "started": process.started if process else 0,
            "since": self._since,
            "restarts": self._restarts,
            "groups": self._group.folders,
            "weaker": self._group.weaker,
            "inodes": [sockets.inode(self._listening[wanted]) for wanted in definition.listening],
        }
        # Replaced with rename(2): if the keeper is killed while it writes, the old state stays complete.
        new = f"{self._path}.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, self._path)


def boot() -> str:
    """Identifies this boot of the server: process ids that were recorded before it mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
