"""A phone with an authenticator, and a clock that a test moves."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from svc.identity import second_factor_records, totp
from tests.support.harness import PASSWORD, Client

NOW = 1_790_000_010.0
"""In the middle of a step."""


@dataclass
class Authenticator:
    secret: str = ""
    now: float = NOW

    @classmethod
    def with_clock(cls, monkeypatch: pytest.MonkeyPatch) -> Authenticator:
        """The service's clock is this one's."""
        made = cls()
        monkeypatch.setattr(second_factor_records, "time", SimpleNamespace(time=lambda: made.now))
        return made

    def code(self, steps: int = 0) -> str:
        """What it shows now, or so many steps later."""
        return totp.code_at(base64.b32decode(self.secret), int(self.now // totp.STEP_SECONDS) + steps)

    def wrong_code(self) -> str:
        shown = {self.code(steps) for steps in (-1, 0, 1)}
        return next(code for code in ("000000", "111111", "222222", "333333") if code not in shown)

    def pass_time(self, seconds: float = totp.STEP_SECONDS) -> None:
        self.now += seconds

    async def set_up(self, client: Client, password: str = PASSWORD) -> list[str]:
        """Have it count for who is signed in; returns the recovery codes. The next code is one that was not used."""
        enrolment = await client.post("/me/second-factor", {"password": password})
        assert enrolment.status_code == 200, enrolment.text
        self.secret = enrolment.json()["secret"]
        confirmed = await client.post("/me/second-factor/confirm", {"code": self.code()})
        assert confirmed.status_code == 200, confirmed.text
        self.pass_time()
        codes: list[str] = confirmed.json()["recovery_codes"]
        return codes


async def password_given(client: Client, email: str, password: str = PASSWORD) -> str:
    """The pending sign-in of somebody who needs a code."""
    answer = await client.post("/auth/login", {"email": email, "password": password})
    assert answer.status_code == 202, answer.text
    pending: str = answer.json()["pending"]
    return pending


async def code_given(client: Client, pending: str, code: str) -> Any:
    return await client.post("/auth/code", {"pending": pending, "code": code})
