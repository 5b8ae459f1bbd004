"""The readiness checks that are the agent's own: its clock against the controller's, and the age of its certificate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from svc_nodeagent.config import Identity
from svc_nodeagent.protocol import CheckStatus, OperationResult, PreflightCheck, PreflightResult

_SKEW_NOTED = timedelta(seconds=5)
_SKEW_TOO_MUCH = timedelta(minutes=5)


def complete(result: OperationResult, *, controller_time: datetime, identity: Identity) -> OperationResult:
    """Add `time` and `certificate` to a preflight's checks."""
    if not isinstance(result, PreflightResult):
        return result
    now = datetime.now(UTC)
    own = (_time(now, controller_time), _certificate(now, identity))
    names = {check.name for check in own}
    return PreflightResult(checks=(*(check for check in result.checks if check.name not in names), *own))


def _time(now: datetime, controller_time: datetime) -> PreflightCheck:
    skew = now - controller_time
    seconds = skew.total_seconds()
    if abs(skew) >= _SKEW_TOO_MUCH:
        status, advice = CheckStatus.FAILED, "; set the clock, or certificates will not hold"
    elif abs(skew) >= _SKEW_NOTED:
        status, advice = CheckStatus.WARNING, "; does a time service run here?"
    else:
        status, advice = CheckStatus.PASSED, ""
    return PreflightCheck(
        name="time", status=status, message=f"the clock is {seconds:+.1f} s from the controller's{advice}"
    )


def _certificate(now: datetime, identity: Identity) -> PreflightCheck:
    left = identity.not_after - now
    if left <= timedelta(0):
        status, message = CheckStatus.FAILED, "the certificate has expired; enrol this node again"
    elif now >= identity.renew_at + timedelta(days=1):
        status, message = CheckStatus.WARNING, f"{left.days} days left, and its renewal is overdue"
    else:
        status, message = CheckStatus.PASSED, f"{left.days} days left, renewed by itself at two thirds"
    return PreflightCheck(name="certificate", status=status, message=message)
