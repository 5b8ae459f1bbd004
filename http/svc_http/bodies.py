"""What the body of a request may be, to either tier (hosting-panel-api.md, Limits; docs/limits.md)."""

from __future__ import annotations

from typing import Final

MAX_BODY: Final = 1_000_000
"""Bytes of a body that is read whole."""
MAX_PUBLIC_BODY: Final = 16 * 1024
"""The same where nobody has to sign in: a sign-in is some hundred bytes, a node's enrolment some thousand, and each is
held in memory for whoever sends it slowly."""
BODY_DEADLINE: Final = 30.0
"""Seconds in which all of it has to come."""
