"""How often an actor may crash, how long it rests after each crash, and what the operator is told about it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Up to `intensity` crashes within `window` seconds are followed by a reload, each after a longer pause.

    The pause starts at `first_pause` seconds and doubles with every crash in the window, up to `longest_pause`. One
    crash more and the actor refuses messages for `cool_down` seconds; then it is tried again, and while the old crashes
    are still within the window a single further one sends it back to rest.
    """

    intensity: int = 5
    window: float = 60.0
    first_pause: float = 0.1
    longest_pause: float = 5.0
    cool_down: float = 30.0

    def __post_init__(self) -> None:
        if self.intensity < 0 or min(self.window, self.first_pause, self.longest_pause, self.cool_down) < 0:
            raise ValueError(f"a restart policy has no negative numbers: {self}")

    def judge(self, crashes: tuple[float, ...], now: float) -> Verdict:
        """Given the times of earlier crashes, say what follows on one at `now`."""
        recent = (*(then for then in crashes if now - then < self.window), now)[-self.intensity - 1 :]
        if len(recent) > self.intensity:
            return Verdict(recent, refuse=True, pause=self.cool_down)
        pause = min(self.first_pause * 2.0 ** min(len(recent) - 1, 64), self.longest_pause)
        return Verdict(recent, refuse=False, pause=pause)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows on a crash: a pause in seconds, during which messages are kept, or refused."""

    crashes: tuple[float, ...]
    refuse: bool
    pause: float


class AlertKind(StrEnum):
    """`CRASHED`: discarded, and loaded again after a pause. `REFUSING`: crashed too often, resting for the cool-down.
    `OVERDUE`: a handler passed its deadline. `UNHEARD`: a domain error that nobody waited for, so it is told here."""

    CRASHED = "crashed"
    REFUSING = "refusing"
    OVERDUE = "overdue"
    UNHEARD = "unheard"


@dataclass(frozen=True, slots=True)
class ActorAlert:
    """Something about one actor that no asker may be there to hear. `actor` reads `Type:key`, `during` names the
    handler or the work, `retry_after` is in seconds where the actor rests."""

    kind: AlertKind
    actor: str
    during: str
    error: BaseException
    retry_after: float | None = None

    def __str__(self) -> str:
        rests = "" if self.retry_after is None else f"; tried again in {self.retry_after:g} seconds"
        return f"{self.actor} {self.kind} in {self.during}: {type(self.error).__name__}: {self.error}{rests}"


def log_alert(alert: ActorAlert) -> None:
    """Where alerts go when the system was opened without `on_alert`."""
    level = logging.WARNING if alert.kind is AlertKind.UNHEARD else logging.ERROR
    logger.log(level, "%s", alert, exc_info=alert.error)
