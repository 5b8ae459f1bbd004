"""Starts the agent's current release, restarts it when it ends, and rolls back a new release that is not accepted.

    svc-node-launcher DATA [options of `svc-nodeagent run`]

The controller must accept a release on trial (releases.py) within a number of seconds; the agent then removes
`trial.json`. If the new release ends before that, or the time is over, the previous release is started again. A host
keeps its launcher when the agent is upgraded, so the launcher knows only one thing of a release: where its program is.
Stop signals are passed on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from svc_nodeagent.releases import Releases, Trial

RELEASE_VARIABLE = "SVC_NODE_RELEASE"
"""Tells the agent which release it is, and that a launcher started it."""
_PAUSE_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_STOP_SECONDS = 20.0
"""Seconds for a stopping agent to end: longer than the agent waits for its running operations."""


class Launcher:
    def __init__(self, data: Path, options: Sequence[str]) -> None:
        self._releases = Releases(data)
        self._options = ["run", "--data", str(data), *options]
        self._agent: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> None:
        """Runs until a stop signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self._stopping:
            trial, release = self._releases.trial(), self._releases.current()
            agent = self._start(release)
            if trial is not None:
                self._watch(agent, trial)
            code = agent.wait()
            if self._stopping:
                return
            if self._releases.current() == release:
                _say(f"the agent (release {release}) ended with code {code}; it is started again")
                time.sleep(_PAUSE_SECONDS)

    def _start(self, release: str) -> subprocess.Popen[bytes]:
        self._agent = subprocess.Popen(
            [self._releases.program(release), *self._options],
            stdin=subprocess.DEVNULL,
            env={**os.environ, RELEASE_VARIABLE: release},
        )
        if self._stopping:  # The signal has arrived between the check and this start.
            self._agent.terminate()
        return self._agent

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        if self._agent is not None:
            self._agent.terminate()

    def _watch(self, agent: subprocess.Popen[bytes], trial: Trial) -> None:
        """Wait until the release is accepted; roll it back if it is not."""
        deadline = time.monotonic() + trial.seconds
        while not self._stopping and self._releases.trial() == trial:
            ended = agent.poll()
            if ended is not None:
                self._go_back(agent, trial, f"it ended with code {ended} before the controller had accepted it")
            elif time.monotonic() > deadline:
                self._go_back(agent, trial, f"the controller did not accept it within {trial.seconds:g} seconds")
            else:
                time.sleep(_LOOK_SECONDS)

    def _go_back(self, agent: subprocess.Popen[bytes], trial: Trial, reason: str) -> None:
        agent.terminate()
        try:
            agent.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        self._releases.go_back(trial, reason)
        _say(f"went back from release {trial.release} to {trial.before}: {reason}")


def _say(line: str) -> None:
    sys.stderr.write(f"svc-node: {line}\n")


def main() -> None:
    Launcher(Path(sys.argv[1]), sys.argv[2:]).run()


if __name__ == "__main__":
    main()
