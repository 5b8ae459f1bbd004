"""Tries a new release of the panel, and goes back to the previous one unless it proves itself.

This program outlives the core that ordered the trial: it is a unit of its own, restarted after a kill and after a
reboot. At its start it finds

- an order: the release is tried. The core ends, `current` is changed, core and web start. The release is kept if,
  within `PATIENCE`, its core runs for `STEADY_SECONDS` without ending, and web and the sites that answered before do so
  again;
- a trial: the process that tried it was interrupted. It goes back, since a release that takes its server down must not
  be tried for ever;
- a trial with a written outcome: it completes the remaining steps.

The new release may have migrated the database before the previous one runs again. The previous release may use that
database during the trial, and afterwards if the outcome names it as the previous release: migrations only add what that
release can do without.

A full disk does not prevent going back: an outcome that cannot be written is written once there is room, and until then
the trial stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from svc_webhost.releases.layout import Outcome, Releases, Trial

PATIENCE: Final = 180.0
"""Seconds within which a release must run steadily, including its migrations."""
STEADY_SECONDS: Final = 20.0
RETURN_SECONDS: Final = 60.0
"""How long to wait for the previous release to answer again."""
LOOK_SECONDS: Final = 0.5
ROOM_SECONDS: Final = 5.0
"""Seconds between two attempts to write an outcome."""
MOST_ENDS: Final = 3


@dataclass(frozen=True)
class Core:
    """The core as systemd sees it. `failed`: systemd has given up on starting it. `ends`: failures since its start."""

    failed: bool
    pid: int
    ends: int


class Server(Protocol):
    """The programs of this server. None of the methods raises."""

    def stop_core(self) -> None: ...

    def start(self) -> None:
        """Start the core of the current release, and restart web, without waiting."""
        ...

    def core(self) -> Core | None:
        """The state of the core; None if it is unknown at the moment."""
        ...

    def release(self, trial: Trial) -> str | None:
        """The name of the release whose core answers; None if none does."""
        ...

    def web_answers(self, trial: Trial) -> bool: ...

    def answering(self, trial: Trial, domains: Sequence[str]) -> list[str]:
        """The sites among `domains` that answer with a status below 500."""
        ...

    def last_words(self) -> str:
        """The end of the core's log; empty if there is none."""
        ...


@dataclass(frozen=True)
class Switch:
    releases: Releases
    server: Server
    boot: str
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    say: Callable[[str], None]
    steady: float = STEADY_SECONDS

    def run(self) -> None:
        trial = self.releases.trial()
        if trial is None:
            trial = self.releases.take_order(self.boot)
            if trial is not None:
                self.say(f"release {trial.release} is tried instead of {trial.before}")
                self._finish(trial, self._try(trial))
            return
        outcome = self.releases.outcome()
        if outcome is None or outcome.job != trial.job:
            outcome = _returned(trial, "the trial was interrupted: the server, or the program that switches, ended")
        self._finish(trial, outcome)

    def _finish(self, trial: Trial, outcome: Outcome) -> None:
        """May be interrupted and repeated at any point."""
        if outcome.kept:
            self._write(outcome)
            self.say(f"release {trial.release} is kept")
        else:
            self.say(f"going back from release {trial.release} to {trial.before}: {outcome.reason}")
            problem = self._problem_in_writing(outcome)
            self.server.stop_core()
            self.releases.switch(trial.before)
            self.server.start()
            self._await_before(trial)
            if problem is not None:
                self._write(outcome)
        self.releases.end_trial()

    def _write(self, outcome: Outcome) -> None:
        said: str | None = None
        while (problem := self._problem_in_writing(outcome)) is not None:
            if problem != said:
                self.say(f"the outcome cannot be recorded; it is retried: {problem}")
            said = problem
            self.sleep(ROOM_SECONDS)

    def _problem_in_writing(self, outcome: Outcome) -> str | None:
        try:
            self.releases.write_outcome(outcome)
        except OSError as error:
            return str(error)
        return None

    def _try(self, trial: Trial) -> Outcome:
        before = self.server.answering(trial, trial.domains)
        self.server.stop_core()
        try:
            self.releases.switch(trial.release)
        except OSError as error:
            return _returned(trial, f"it could not be put in place: {error}")
        self.server.start()
        return self._watch(trial, before)

    def _watch(self, trial: Trial, before: Sequence[str]) -> Outcome:
        """Wait until the release is steady or has failed. A single missed answer may only be slow: then the steady time
        starts anew."""
        over = self.clock() + PATIENCE
        first: Core | None = None
        since: float | None = None
        while True:
            core = self.server.core()
            if core is not None and (core.failed or core.ends >= MOST_ENDS):
                return _returned(trial, self._because("its core does not start"))
            if first is not None and core is not None and core != first:
                return _returned(trial, self._because("its core answered, and ended after that"))
            missing = self._missing(trial)
            if missing is not None:
                since = None
            elif core is not None:
                first = core
                since = self.clock() if since is None else since
            if since is None and self.clock() >= over:
                return _returned(trial, self._because(f"{missing or 'it is not stable'} within {PATIENCE:.0f} s"))
            if since is not None and self.clock() - since >= self.steady:
                there = self.server.answering(trial, before)
                silent = tuple(domain for domain in before if domain not in there)
                if not silent:
                    return Outcome(trial.job, trial.release, trial.before, kept=True)
                if self.clock() >= over:
                    names = ", ".join(silent[:5])
                    return _returned(trial, f"{len(silent)} sites answered before and do not now: {names}", silent)
            self.sleep(LOOK_SECONDS)

    def _missing(self, trial: Trial) -> str | None:
        answers = self.server.release(trial)
        if answers is None:
            return "its core does not answer"
        if answers != trial.release:
            return f"the core that answers is of {answers}, none of it answers"
        return None if self.server.web_answers(trial) else "its web tier does not answer"

    def _because(self, reason: str) -> str:
        words = self.server.last_words()
        return f"{reason}: {words}" if words else reason

    def _await_before(self, trial: Trial) -> None:
        over = self.clock() + RETURN_SECONDS
        while self.clock() < over:
            if self.server.release(trial) == trial.before:
                self.say(f"release {trial.before} answers again")
                return
            self.sleep(LOOK_SECONDS)
        self.say(f"release {trial.before} does not answer within {RETURN_SECONDS:.0f} s; systemd keeps starting it")


def _returned(trial: Trial, reason: str, silent: tuple[str, ...] = ()) -> Outcome:
    return Outcome(trial.job, trial.release, trial.before, kept=False, reason=reason, silent=silent)
