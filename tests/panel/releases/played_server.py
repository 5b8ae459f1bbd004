"""A server on which releases of the panel are tried: they do as a test says, and time is the test's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from svc_webhost.releases.layout import Ports, Releases, Trial
from svc_webhost.releases.switch import Core, Switch

GOOD, NEW = "1.0.0-" + 12 * "a", "1.1.0-" + 12 * "b"
SITES = ("a.example.com", "b.example.com", "down.example.com")


class PowerCut(BaseException):
    """Nothing after it happens: no handler of the program under test may take it."""


@dataclass
class Behaviour:
    """Of a release's core: `starts_after` seconds it answers, `ends_after` so many more it ends and is started again.
    `refuses`: it ends at once. `fails`: its supervisor gives up. `calls_itself`: what it says it is."""

    starts_after: float = 2.0
    ends_after: float | None = None
    refuses: bool = False
    fails: bool = False
    calls_itself: str | None = None
    web: bool = True
    silent: tuple[str, ...] = ()


@dataclass
class PlayedServer:
    releases: Releases
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    now: float = 0.0
    runs: str | None = GOOD
    began: float = -100.0
    starts: int = 0
    at_each: Callable[[str], None] = lambda step: None
    """Called before whatever is done; raises to have that not done, and nothing after it."""

    def stop_core(self) -> None:
        self.at_each("stop")
        self.runs = None

    def start(self) -> None:
        self.at_each("start")
        self.boot()

    def boot(self) -> None:
        self.runs, self.began = self.releases.current(), self.now
        self.starts += 1

    def core(self) -> Core | None:
        how, age = self._how(), self.now - self.began
        ends = 0
        if how.refuses:
            ends = int(age // 2)
        elif how.ends_after is not None:
            ends = int(age // (how.starts_after + how.ends_after))
        return Core(how.fails, 1000 + 100 * self.starts + ends, ends)

    def release(self, trial: Trial) -> str | None:
        how, age = self._how(), self.now - self.began
        if self.runs is None or how.refuses or how.fails or age < how.starts_after:
            return None
        return how.calls_itself or self.runs

    def web_answers(self, trial: Trial) -> bool:
        return self._how().web

    def answering(self, trial: Trial, domains: Sequence[str]) -> list[str]:
        return [each for each in domains if each not in ("down.example.com", *self._how().silent)]

    def last_words(self) -> str:
        return "the last words"

    def _how(self) -> Behaviour:
        return self.behaviours.get(self.runs or "", Behaviour())


@dataclass
class Tried:
    """A server with the release GOOD, on which NEW is ordered."""

    releases: Releases
    server: PlayedServer
    boot: str = "this-boot"
    said: list[str] = field(default_factory=list)

    def run(self) -> None:
        """The program that switches, once from its beginning."""
        Switch(self.releases, self.server, self.boot, lambda: self.server.now, self._sleep, self.said.append).run()

    def _sleep(self, seconds: float) -> None:
        self.server.at_each("sleep")
        self.server.now += seconds


def tried(folder: Path, how: Behaviour | None = None, *, order: bool = True) -> Tried:
    releases = Releases(folder / "opt", folder / "package")
    (folder / "package").mkdir(parents=True)
    for release in (GOOD, NEW):
        releases.folder(release).mkdir(parents=True)
    releases.switch(GOOD)
    if order:
        releases.order(Trial(7, NEW, GOOD, "this-boot", "/run/core.sock", Ports(7443, 80), SITES))
    return Tried(releases, PlayedServer(releases, {NEW: how or Behaviour()}))
