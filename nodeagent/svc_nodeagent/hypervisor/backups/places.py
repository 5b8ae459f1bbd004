"""Stores of backups that are not on a file system mounted on the node (`mounted`).

    <path or prefix>/<vm_id>/          by SFTP, or in a bucket of S3: the place comes with the operation

Invariants: credentials of a target are in the environment of the program or in this process's memory, and never on a
disk of the node. An SFTP server is used only while it shows the host key that was confirmed.

Rejected: relying on restic's messages about a failing target. For SFTP, restic does not report why ssh has ended; S3
servers answer restic's HEAD requests without a text; and restic retries an absent server for a quarter of an hour. So
the agent first sends each target a request of its own.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import structlog
import trio

from svc_nodeagent.aws_signing import Keys, signed
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.programs import ProgramFailed, try_program
from svc_nodeagent.protocol import BackupPlace, BucketPlace, FailureCode, SftpPlace

_CONNECT_SECONDS: Final = 15.0
# Longer than ssh's own ConnectTimeout (20 s), because ssh's message is better than ours.
_SESSION_SECONDS: Final = 40.0
_SWEEP_SECONDS: Final = 900.0
_UNFINISHED: Final = "*-restic-temp-*"
"""Names of incomplete files that restic is writing by SFTP."""
_MOST_SAID_BYTES: Final = 64 * 1024
_PORTS: Final = {"http": 80, "https": 443}
_FULL: Final = ("no space left on device", "disk quota exceeded", "storagefull", "quotaexceeded", "quota exceeded")
"""restic's words for ENOSPC and EDQUOT, and what S3 servers say in their place."""
_MEANINGS: Final = {
    "access key id you provided does not exist": "does not know the access key",
    "request signature we calculated does not match": "says that the secret key is not the one of the access key",
    "specified bucket does not exist": "has no such bucket",
    "access denied": "does not let the access key use the bucket, or its secret is another one",
    "host key verification failed": "presents another host key than the confirmed one",
    "permission denied (": "does not let the target's key in; its public key belongs into authorized_keys there",
    "permission denied": "does not let the account write to the folder",
    'write: sftp: "failure"': "accepts no data: it is full, or its disk fails",
    "connection refused": "does not answer (connection refused)",
    "connection timed out": "does not answer (nothing was heard from it)",
    "could not resolve hostname": "does not answer (there is no address of its name)",
    "connection reset": "does not answer",
    "no route to host": "does not answer",
    "i/o timeout": "does not answer",
    "broken pipe": "does not answer",
    "connection lost": "does not answer",
    "file does not exist": "has lost data of earlier backups, or its folder is gone",
    "key does not exist": "has lost data of earlier backups, or its folder is gone",
}
"""Words of ssh and of S3 servers, in lower case, with their meaning. The first match counts, so more specific words
come first ("permission denied (" is ssh's and comes before the words about a file)."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ResticAccess:
    """How restic reaches a store: its location, options and environment."""

    location: str
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    through: tuple[str, ...] = ()
    """A program with its arguments that opens the store and then executes restic; empty if restic opens the store
    itself."""


class Place(Protocol):
    def reached(self) -> AbstractAsyncContextManager[ResticAccess]:
        """Make the place accessible to restic for the length of the block. Raises `HostError` if the place does not
        exist or does not answer."""
        ...

    def failure(self, failed: ProgramFailed) -> HostError:
        """Convert a failure of restic to a `HostError` whose message is about the place."""
        ...


@dataclass(frozen=True)
class RemotePlace:
    place: BackupPlace
    vm_id: UUID

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[ResticAccess]:
        match self.place:
            case SftpPlace() as sftp:
                with _in_memory(sftp.private_key) as key, _in_memory(f"{_known(sftp)} {sftp.host_key}\n") as known:
                    ssh = _ssh(sftp, key.path, known.path)
                    # A session is opened and closed once before restic starts: this is the only way to learn why ssh
                    # fails.
                    await self._require_session(ssh)
                    command = shlex.join(ssh)
                    location = f"sftp:{sftp.user}@{sftp.host}:{sftp.path}/{self.vm_id}"
                    yield ResticAccess(location, ("-o", f"sftp.command={command}"))
            case BucketPlace() as s3:
                await self._require_answer(s3)
                parts = (s3.endpoint, s3.bucket, s3.prefix, str(self.vm_id))
                environment = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
                if s3.session_token is not None:
                    environment["AWS_SESSION_TOKEN"] = s3.session_token
                options = ("-o", f"s3.region={s3.region}")
                yield ResticAccess(f"s3:{'/'.join(part for part in parts if part)}", options, environment)

    async def remove_unfinished(self) -> None:
        """Remove what restic was writing by SFTP when it was killed: neither its unlock nor its prune knows such files,
        and they may be what fills the target, so that restic cannot even write its lock. If another restic still writes
        one, its upload fails and is repeated. In a bucket an object appears only once it is whole."""
        if not isinstance(self.place, SftpPlace):
            return
        sftp = self.place
        quoted = f"{sftp.path}/{self.vm_id}".replace("\\", "\\\\").replace('"', '\\"')
        # "-" before a command: an error, such as no match, does not stop the batch.
        lines = (f'cd "{quoted}"', *(f"-rm {folder}/{_UNFINISHED}" for folder in ("*", "data/*")), "")
        with _in_memory(sftp.private_key) as key, _in_memory(f"{_known(sftp)} {sftp.host_key}\n") as known:
            command = _sftp(sftp, key.path, known.path)
            try:
                status, _, said = await try_program(*command, stdin="\n".join(lines).encode(), timeout=_SWEEP_SECONDS)
            except HostError as error:
                # The removal has timed out. The backup does not fail for that, since its own steps have deadlines.
                status, said = -1, error.message
        if status != 0:
            # Files that stay are removed before the next prune. If the target is unreachable, restic's own step reports
            # that.
            log.warning("backup.unfinished_left", target=sftp.name, vm_id=str(self.vm_id), why=said.strip())

    def failure(self, failed: ProgramFailed) -> HostError:
        if is_full(failed):
            return HostError(
                FailureCode.TARGET,
                f"{self._words} is full; the backups that are there were left as they are.",
                "The provider makes room at the target, or has fewer backups kept.",
            )
        said = failed.error.lower()
        meaning = next((meaning for words, meaning in _MEANINGS.items() if words in said), None)
        return self.failed(meaning or f"failed: {failed.message}")

    def failed(self, how: str) -> HostError:
        return HostError(FailureCode.TARGET, f"{self._words} {how.rstrip('.')}.", _LEFT)

    @property
    def is_bound(self) -> bool:
        """Whether the place's keys give access to this store alone, as temporary keys of an STS do."""
        return isinstance(self.place, BucketPlace) and self.place.session_token is not None

    @property
    def explains(self) -> bool:
        """Whether the bucket's first answer says why it refuses (see `without_region`)."""
        return not isinstance(self.place, BucketPlace)

    async def lacks(self, name: str) -> bool:
        """Whether a bucket says that it has no such file of the store. If a key may list only one folder, S3 gives it
        the same answer for a missing file as for a forbidden one: only the list of the folder shows which it is. False
        if not known.
        """
        query = {"list-type": "2", "max-keys": "1", "prefix": self._key(name)}
        try:
            status, listed = await self._ask("GET", "", query=query)
        except (httpx.HTTPError, trio.TooSlowError):
            return False
        # Only a list without keys proves that the file does not exist; an error page contains no key, either.
        return status == httpx.codes.OK and b"<Key>" not in listed and b"ListBucketResult" in listed

    async def put(self, name: str, content: bytes) -> None:
        """Write a file of a store in a bucket. Raises `HostError`."""
        try:
            status, said = await self._ask("PUT", f"/{self._key(name)}", body=content)
        except (httpx.HTTPError, trio.TooSlowError) as error:
            raise self.failed("does not answer") from error
        if status != httpx.codes.OK:
            raise self.failure(ProgramFailed("restic", status, said.decode(errors="replace")))

    def _key(self, name: str) -> str:
        assert isinstance(self.place, BucketPlace)
        return "/".join(part for part in (self.place.prefix, str(self.vm_id), name) if part)

    async def _ask(
        self, method: str, path: str, *, query: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, bytes]:
        """The status of the answer, and the first part of its body."""
        s3 = self.place
        assert isinstance(s3, BucketPlace)
        url, headers = signed(
            Keys(s3.access_key, s3.secret_key, s3.session_token),
            method,
            f"{s3.endpoint}/{s3.bucket}{path}",
            service="s3",
            region=s3.region,
            at=datetime.now(UTC),
            query=query,
            body=body,
        )
        said = bytearray()
        with trio.fail_after(_SESSION_SECONDS):
            async with (
                httpx.AsyncClient(trust_env=False) as http,
                http.stream(method, url, headers=headers, content=body or None) as answer,
            ):
                async for piece in answer.aiter_bytes():
                    said += piece
                    if len(said) > _MOST_SAID_BYTES:
                        break
        return answer.status_code, bytes(said)

    @property
    def _words(self) -> str:
        return f"The backup target {self.place.name} ({_address(self.place)})"

    async def _require_session(self, ssh: list[str]) -> None:
        """Raise `HostError` if no SFTP session can be opened, saying why: restic does not say why ssh has ended."""
        status, _, said = await try_program(*ssh, timeout=_SESSION_SECONDS)
        if status != 0:
            raise self.failure(ProgramFailed("ssh", status, said))

    async def _require_answer(self, s3: BucketPlace) -> None:
        """Raise `HostError` if the server does not answer: restic itself asks an absent server for a quarter of an hour
        before it reports that."""
        url = urlsplit(s3.endpoint)
        try:
            with trio.fail_after(_CONNECT_SECONDS):
                stream = await trio.open_tcp_stream(url.hostname or "", url.port or _PORTS[url.scheme])
        except (OSError, trio.TooSlowError) as error:
            reason = getattr(error, "strerror", None) or "nothing was heard from it"
            raise self.failed(f"does not answer ({reason})") from error
        await stream.aclose()


_LEFT: Final = "The existing backups were not changed. Check the target; the next backup continues there."


def without_region(way: ResticAccess) -> ResticAccess:
    """restic asks S3 by HEAD, whose answers have no text: a missing bucket looks like an empty one, which `init` would
    create, and a wrong key like any other refusal. If restic is not given a region, it first asks for the region, by
    GET, and the answer to that says why."""
    return replace(way, options=())


def is_full(failed: ProgramFailed) -> bool:
    said = failed.error.lower()
    return any(words in said for words in _FULL)


def _address(place: BackupPlace) -> str:
    match place:
        case SftpPlace(host=host, port=port, path=path):
            return f"sftp://{host}:{port}{path}"
        case BucketPlace(endpoint=endpoint, bucket=bucket):
            return f"{endpoint}/{bucket}"


def _known(place: SftpPlace) -> str:
    # The name as known_hosts has it: a port other than 22 is part of the name.
    return place.host if place.port == 22 else f"[{place.host}]:{place.port}"


def _ssh(place: SftpPlace, key: str, known: str) -> list[str]:
    return ["ssh", *_told(key, known), "-p", str(place.port), "-l", place.user, place.host, "-s", "sftp"]


def _sftp(place: SftpPlace, key: str, known: str) -> list[str]:
    """Run a batch of SFTP commands, given to sftp on standard input."""
    # IPv6 addresses get brackets, because sftp would take their colons for the start of a path.
    host = f"[{place.host}]" if ":" in place.host else place.host
    return ["sftp", *_told(key, known), "-P", str(place.port), "-o", f"User={place.user}", "-b", "-", host]


def _told(key: str, known: str) -> list[str]:
    """OpenSSH's options: it reads no configuration of the node, prompts for nothing, and trusts one host key."""
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": known,
        "GlobalKnownHostsFile": "/dev/null",
        "IdentitiesOnly": "yes",
        "IdentityFile": key,
        "PreferredAuthentications": "publickey",
        "ConnectTimeout": "20",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
    }
    told = [argument for name, value in options.items() for argument in ("-o", f"{name}={value}")]
    return ["-F", "none", *told]


class _in_memory:  # noqa: N801  (used as a block)
    """A file in this process's memory, for the length of a block. ssh gets it as a path in /proc of this process, since
    ssh closes the descriptors that it inherits."""

    def __init__(self, content: str) -> None:
        self._content = content.encode()
        self._descriptor = -1

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def __enter__(self) -> _in_memory:
        # CLOEXEC: programs that are started meanwhile for other machines must not inherit the key.
        self._descriptor = os.memfd_create("svc-backup", os.MFD_CLOEXEC)
        os.fchmod(self._descriptor, 0o600)
        os.write(self._descriptor, self._content)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
