"""The agent's own readiness checks: its clock compared with the controller's, and the age of its certificate."""

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
        status, advice = CheckStatus.FAILED, " Set the clock: with a wrong one, certificates are rejected."
    elif abs(skew) >= _SKEW_NOTED:
        status, advice = CheckStatus.WARNING, " Check that a time service runs here."
    else:
        status, advice = CheckStatus.PASSED, ""
    return PreflightCheck(
        name="time", status=status, message=f"The clock is {seconds:+.1f} s from the controller's.{advice}"
    )


def _certificate(now: datetime, identity: Identity) -> PreflightCheck:
    left = identity.not_after - now
    if left <= timedelta(0):
        status, message = CheckStatus.FAILED, "The certificate has expired. Enrol this node again."
    elif now >= identity.renew_at + timedelta(days=1):
        status, message = (
            CheckStatus.WARNING,
            f"{left.days} days are left, and its renewal is overdue. See the agent's log.",
        )
    else:
        status, message = CheckStatus.PASSED, f"{left.days} days are left; it is renewed at two thirds of its lifetime."
    return PreflightCheck(name="certificate", status=status, message=message)
