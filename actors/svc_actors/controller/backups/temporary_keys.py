"""Temporary keys of a bucket for one operation of one node, from the target's STS, for one machine's copies alone.

An attacker who has taken over a hypervisor tries to destroy the backups first. The target's own key opens the copies of
all machines, so it stays in the controller. A node gets a key that opens only `<bucket>/<prefix>/<vm_id>/`, is
read-only if the operation only reads, and expires at the operation's deadline. The request contains a policy, and the
keys that the STS issues have only those permissions of the target's key (or role) that the policy names.

Rejected: giving nodes the target's key, as at first: root on one node could remove the backups of all machines. Targets
without an STS still work this way, and are marked as shared. Also rejected: having the controller sign each request.
restic speaks S3 itself, so the controller would be a proxy for every byte of every backup.

Keys expire at the operation's deadline and not at its end, because an STS cannot revoke keys that it has issued.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode
from uuid import UUID
from xml.etree import ElementTree

import httpx
import trio

from svc_nodeagent.aws_signing import Keys, signed
from svc_nodeagent.protocol import Facts

# The version of the STS API, and AWS's bounds on the duration of keys: at least 15 minutes for both calls, at most 12
# hours, which is AssumeRole's maximum.
_VERSION: Final = "2011-06-15"
_LEAST_SECONDS: Final = 900
_MOST_SECONDS: Final = 12 * 3600
_SPARE_SECONDS: Final = 300
"""The keys are valid for this much longer than the operation's deadline: clocks may differ, and some time passes until
the node uses the keys."""
_ASK_SECONDS: Final = 30.0
_MOST_ANSWER: Final = 64 * 1024  # An answer is a few KiB: three keys and some ids.
_READ: Final = ("s3:GetObject",)
_WRITE: Final = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")


class NoTemporaryKeys(Exception):  # noqa: N818 - named for what it says
    """The STS issued no keys; the text says why. `passing`: the STS did not answer, or has a fault of its own, so
    asking again may help. A task that resumes, and asks while its node is still at work, must not fail because of such
    a failure."""

    def __init__(self, said: str, *, passing: bool = False) -> None:
        super().__init__(said)
        self.passing = passing


@dataclass(frozen=True)
class KeyNeed:
    """What one operation needs: the machine whose copies it works with, whether it only reads, and its duration in
    seconds."""

    vm_id: UUID
    reads_only: bool
    seconds: float


def need_of(facts: Facts, vm_id: UUID, *, reads_only: bool = False) -> KeyNeed:
    """`facts`: those of the operation; `vm_id`: the machine whose copies it works with."""
    return KeyNeed(vm_id, reads_only, facts.task_seconds or _LEAST_SECONDS)


@dataclass(frozen=True)
class Sts:
    """The STS from which a target's temporary keys come. `role`: the role to assume; None: `GetFederationToken` of the
    account to which the key belongs."""

    endpoint: str
    region: str
    role: str | None


def policy(bucket: str, prefix: str, need: KeyNeed) -> dict[str, object]:
    """The policy of the keys, which permits only what the operation needs. It also permits reading the bucket's region,
    which is no secret and for which restic asks."""
    # `whole` and a slash are added below, so the policy covers this folder and not every key that starts with the
    # machine's id.
    folder = "/".join(part for part in (prefix, str(need.vm_id)) if part)
    whole = f"arn:aws:s3:::{bucket}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": list(_READ if need.reads_only else _WRITE),
                "Resource": [f"{whole}/{folder}/*"],
            },
            {
                # Listing is a permission on the whole bucket; only the prefix condition limits it to the machine's
                # folder.
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [whole],
                "Condition": {"StringLike": {"s3:prefix": [f"{folder}/*"]}},
            },
            {"Effect": "Allow", "Action": ["s3:GetBucketLocation"], "Resource": [whole]},
        ],
    }


def open_client() -> httpx.AsyncClient:
    """A client of its own and not `outbound`, which refuses private addresses: an administrator configures the STS, and
    it is usually in the network of the nodes. It follows no redirects, so that the signed request goes nowhere else."""
    return httpx.AsyncClient(timeout=_ASK_SECONDS, follow_redirects=False, trust_env=False)


async def temporary_keys(sts: Sts, own: Keys, bucket: str, prefix: str, need: KeyNeed) -> Keys:
    """Ask the STS for keys that allow exactly what `need` names below the prefix of the bucket. Raises
    `NoTemporaryKeys`."""
    seconds = min(_MOST_SECONDS, max(_LEAST_SECONDS, int(need.seconds) + _SPARE_SECONDS))
    asked = {
        "Version": _VERSION,
        "DurationSeconds": str(seconds),
        "Policy": json.dumps(policy(bucket, prefix, need), separators=(",", ":")),
    }
    if sts.role is None:
        # AWS's limits: a federated user's name may have 32 characters, the name of a role's session 64.
        asked |= {"Action": "GetFederationToken", "Name": f"svc-{need.vm_id.hex[:24]}"}
    else:
        asked |= {"Action": "AssumeRole", "RoleArn": sts.role, "RoleSessionName": f"svc-{need.vm_id}"}
    body = urlencode(asked).encode()
    url, headers = signed(
        own,
        "POST",
        f"{sts.endpoint}/",
        service="sts",
        region=sts.region,
        at=datetime.now(UTC),
        body=body,
        content_type="application/x-www-form-urlencoded; charset=utf-8",
    )
    try:
        # The client's own timeout is for each read, and an answer that arrives at one byte a second would never reach
        # it. This bounds the whole call.
        with trio.fail_after(_ASK_SECONDS):
            async with open_client() as http, http.stream("POST", url, content=body, headers=headers) as response:
                answer = bytearray()
                async for piece in response.aiter_bytes():
                    answer += piece
                    if len(answer) > _MOST_ANSWER:
                        raise NoTemporaryKeys("its answer is too long")
    except (httpx.HTTPError, trio.TooSlowError) as error:
        raise NoTemporaryKeys(f"it does not answer ({type(error).__name__})", passing=True) from error
    return _keys(bytes(answer), response.status_code)


def _keys(answer: bytes, status: int) -> Keys:
    passing = status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS
    try:
        parsed = ElementTree.fromstring(answer)  # noqa: S314  (bounded, and expat expands no bombs)
        # Elements are found by their local names alone: servers other than AWS's may use another namespace or other
        # enclosing elements.
        told = {each.tag.rpartition("}")[2]: (each.text or "").strip() for each in parsed.iter()}
    except ElementTree.ParseError as error:
        raise NoTemporaryKeys(f"it answered {status} with something other than XML", passing=passing) from error
    if status != httpx.codes.OK:
        said = f"it answered {status}: {told.get('Code', '')} {told.get('Message', '')}"[:300].strip()
        raise NoTemporaryKeys(said, passing=passing)
    try:
        return Keys(told["AccessKeyId"], told["SecretAccessKey"], told["SessionToken"])
    except KeyError as error:
        raise NoTemporaryKeys(f"its answer has no {error.args[0]}") from error


__all__ = ["KeyNeed", "NoTemporaryKeys", "Sts", "need_of", "policy", "temporary_keys"]
