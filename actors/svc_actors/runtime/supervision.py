"""How often an actor may crash, how long it rests after each crash, and the alerts about it.

With the defaults, five crashes within a minute are followed by pauses of 0.1, 0.2, 0.4, 0.8 and 1.6 s. An actor that
crashes a sixth time is taken to have a defect, and gets one attempt every 30 s.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Up to `intensity` crashes within `window` seconds are followed by another attempt, each after a longer pause.

    The pause starts at `first_pause` seconds and doubles with every crash in the window, up to `longest_pause`. One
    crash more and the circuit breaker opens: the actor refuses messages for `cool_down` seconds. Then one attempt
    decides: a message that is handled closes the breaker, a crash opens it again.
    """

    intensity: int = 5
    window: float = 60.0
    first_pause: float = 0.1
    longest_pause: float = 5.0
    cool_down: float = 30.0

    def __post_init__(self) -> None:
        if self.intensity < 0 or min(self.window, self.first_pause, self.longest_pause, self.cool_down) < 0:
            raise ValueError(f"a restart policy has no negative numbers: {self}")

    def judge(self, crashes: tuple[float, ...], now: float, *, tripped: bool = False) -> Verdict:
        """Given the times of earlier crashes, decide what follows one at `now`. `tripped`: the breaker has opened, and
        nothing was handled since."""
        # As many are kept as decide, so an actor that crashes for days does not grow.
        recent = (*(then for then in crashes if now - then < self.window), now)[-self.intensity - 1 :]
        if tripped or len(recent) > self.intensity:
            return Verdict(recent, refuse=True, pause=self.cool_down)
        # 64: far beyond any `longest_pause`, and 2.0 ** 1024 would be an OverflowError.
        pause = min(self.first_pause * 2.0 ** min(len(recent) - 1, 64), self.longest_pause)
        return Verdict(recent, refuse=False, pause=pause)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows a crash: a pause in seconds, during which messages wait, or are refused."""

    crashes: tuple[float, ...]
    refuse: bool
    pause: float


class AlertKind(StrEnum):
    """`CRASHED`: the instance is discarded; another is loaded after a pause, for the next message. `REFUSING`: it
    crashed too often and refuses messages for the cool-down. `OVERDUE`: a handler passed its deadline. `RECOVERED`:
    after one of these it has handled a message, or had none and has not crashed within the window. `UNHEARD`: a domain
    error without an asker. `LOST`: a message without an asker was not finished when the system closed."""

    CRASHED = "crashed"
    REFUSING = "refusing"
    OVERDUE = "overdue"
    RECOVERED = "recovered"
    UNHEARD = "unheard"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ActorAlert:
    """An event of one actor for the operator, since there may be no asker. `actor` reads `Type:key`, `during` names the
    handler, `error` is None for good news, `retry_after` is the pause in seconds, if there is one."""

    kind: AlertKind
    actor: str
    during: str
    error: BaseException | None = None
    retry_after: float | None = None

    def __str__(self) -> str:
        error = "" if self.error is None else f": {type(self.error).__name__}: {self.error}"
        pause = "" if self.retry_after is None else f"; tried again in {self.retry_after:g} seconds"
        return f"{self.actor} {self.kind} in {self.during}{error}{pause}"


def log_alert(alert: ActorAlert) -> None:
    """Where alerts go when the system was opened without `on_alert`."""
    logger.log(_LEVELS.get(alert.kind, logging.ERROR), "%s", alert, exc_info=alert.error)


_LEVELS: Final = {AlertKind.UNHEARD: logging.WARNING, AlertKind.RECOVERED: logging.INFO}
