"""How an agent replaces itself: fetch the controller's release, verify it, install it next to this one, and start it.

Invariants:

- nothing is unpacked before the signature of the controller's authority and the digest have been verified;
- this release keeps running until the new one is complete and has started once; then it ends in order, with its
  operations in the journal, and the launcher starts the new one on trial;
- the release that runs in the end answers the controller: the new release that it runs, or the old one why the new one
  does not run.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Final

import structlog
import trio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from svc_nodeagent.host import HostError, OpenStream, Report
from svc_nodeagent.protocol import FailureCode, NodeUpgrade
from svc_nodeagent.releases import NotInstalled, Releases, Trial, release_name

_CHUNK: Final = 64 * 1024
_CHECK_SECONDS: Final = 60.0
_KEPT_ON: Final = "The running agent was not changed."
log = structlog.get_logger(__name__)


class Replaced(Exception):  # noqa: N818 - named for what it says
    """This process must end: another release takes over, and answers the operation."""


class Upgrader:
    def __init__(self, data: Path, release: str, authority: Path) -> None:
        self.release = release
        self._data = data
        self._releases = Releases(data)
        self._authority = authority

    def accepted(self) -> None:
        """The controller has accepted this release."""
        if self._releases.accept(self.release):
            log.info("upgrade.accepted", release=self.release)

    async def upgrade(self, operation: NodeUpgrade, open_stream: OpenStream, report: Report) -> None:
        """Return if this is the requested release; otherwise raise `Replaced` once the other is about to start, or
        `HostError` if it could not be started, or was tried and rolled back."""
        wanted = release_name(operation.version, operation.digest)
        if wanted == self.release:
            return
        rollback = self._releases.last_rollback()
        if rollback is not None and (rollback.release, rollback.order) == (wanted, operation.order):
            raise HostError(
                FailureCode.HOST,
                f"Release {wanted} was tried and given up: {rollback.reason}. Release {self.release} runs again.",
                "The log of the node's service svc-node says more.",
            )
        self._verify(operation)
        await report(10, f"fetching release {wanted}")
        wheel = self._releases.path / f"{wanted}.whl"
        try:
            await self._fetch(operation, wheel, open_stream)
            await report(30, f"installing release {wanted}")
            await trio.to_thread.run_sync(self._releases.prune, self.release)
            await trio.to_thread.run_sync(self._releases.install, wheel)
        except NotInstalled as error:
            raise HostError(
                FailureCode.HOST,
                f"Release {wanted} was not installed: {error}. {_KEPT_ON}",
                "Where the node reaches no package index, install the package svc-nodeagent of the new release.",
            ) from error
        except (OSError, trio.BrokenResourceError) as error:
            raise HostError(FailureCode.HOST, f"Release {wanted} was not installed: {error}. {_KEPT_ON}") from error
        finally:
            wheel.unlink(missing_ok=True)
        await self._check(wanted)
        await report(60, f"starting release {wanted}")
        self._releases.start_trial(Trial(wanted, self.release, operation.order, operation.trial_seconds))
        log.info("upgrade.starting", release=wanted, before=self.release)
        raise Replaced

    def _verify(self, operation: NodeUpgrade) -> None:
        authority = x509.load_pem_x509_certificate(self._authority.read_bytes()).public_key()
        try:
            if not isinstance(authority, ec.EllipticCurvePublicKey):
                raise InvalidSignature
            authority.verify(
                base64.b64decode(operation.signature, validate=True), operation.statement, ec.ECDSA(hashes.SHA256())
            )
        except (InvalidSignature, binascii.Error) as error:
            raise HostError(
                FailureCode.INVALID,
                f"The release is not signed by this node's controller; nothing was fetched. {_KEPT_ON}",
            ) from error

    async def _fetch(self, operation: NodeUpgrade, wheel: Path, open_stream: OpenStream) -> None:
        found, size = hashlib.sha256(), 0
        stream = await open_stream(operation.stream_token)
        async with stream, await trio.open_file(wheel, "wb") as file:
            while data := await stream.receive_some(_CHUNK):
                size += len(data)
                if size > operation.size:
                    break
                found.update(data)
                await file.write(data)
        if size != operation.size or found.hexdigest() != operation.digest:
            raise NotInstalled("the fetched file does not match the signature of the controller")

    async def _check(self, wanted: str) -> None:
        """Run the new program's `status`: it must start at all before anything depends on it."""
        command = [str(self._releases.program(wanted)), "status", "--data", str(self._data)]
        with trio.move_on_after(_CHECK_SECONDS):
            ended = await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
            if ended.returncode == 0:
                return
            said = ended.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise HostError(FailureCode.HOST, f"Release {wanted} does not start: {said[-1]}. {_KEPT_ON}")
        raise HostError(FailureCode.HOST, f"Release {wanted} does not start in {_CHECK_SECONDS:g} seconds. {_KEPT_ON}")
