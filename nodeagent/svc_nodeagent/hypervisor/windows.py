"""Operations on a Windows guest through its agent: finds out whether the first boot has ended, and sets the
administrator's password.

An agent that answers proves nothing about the first boot: it may answer while Windows is still being set up, and a
password that is set then is lost. So the last step of the image's first boot writes a file, `FIRST_BOOT`, a JSON object
with `password` (docs/firmware.md): the password that the machine has set for itself, or null.

Invariant: the error text of a guest is never passed on, because it may contain the password, and journals and logs
would store it.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Annotated, Any, Final
from uuid import UUID

import libvirt
from pydantic import BaseModel, Field

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.connection import ConnectionLost, LibvirtError
from svc_nodeagent.hypervisor.guests import GUEST_AGENT_SECONDS, Guests, password_failed
from svc_nodeagent.protocol import FailureCode, WindowsReport

FIRST_BOOT: Final = r"C:\ProgramData\svc\first-boot.json"
_MOST_BYTES: Final = 4_096
_MOST_PASSWORD: Final = 256
_WINDOWS: Final = "mswindows"


class _System(BaseModel):
    id: str


class _SystemSaid(BaseModel):
    system: _System = Field(alias="return")


class _Opened(BaseModel):
    handle: int = Field(alias="return")


class _Content(BaseModel):
    text: str = Field(alias="buf-b64")


class _Read(BaseModel):
    content: _Content = Field(alias="return")


class _Closed(BaseModel):
    """The answer to `guest-file-close`, which is empty."""


class _FirstBoot(BaseModel):
    password: Annotated[str, Field(min_length=1, max_length=_MOST_PASSWORD)] | None = None


class WindowsGuests:
    def __init__(self, guests: Guests) -> None:
        self._guests = guests

    async def report(self, vm_id: UUID) -> WindowsReport:
        """Whether the first boot has ended, and the password that the machine has set. Raises `HostError` only if the
        connection to libvirt is lost, or if there is no such machine."""
        try:
            text = await self._first_boot(vm_id) if await self._is_windows(vm_id) else None
        except ConnectionLost:
            raise
        except (LibvirtError, ValueError):
            text = None
        if text is None:
            return WindowsReport(vm_id=vm_id, booted=False)
        try:
            password = _FirstBoot.model_validate_json(text).password
        except ValueError:
            password = None  # The first boot has ended all the same; a malformed file is a fault of the image.
        return WindowsReport(vm_id=vm_id, booted=True, password=password)

    async def set_password(self, vm_id: UUID, account: str, password: str) -> None:
        """Set the account's password. Raises `HostError`: `conflict` if the guest is off, its agent is absent or its
        system is not Windows, `timed_out` if the agent does not answer, `host` if Windows refuses the password."""
        try:
            windows = await self._is_windows(vm_id)
        except LibvirtError as error:
            raise password_failed(error, account) from error
        except ValueError:
            windows = False
        if not windows:
            raise HostError(
                FailureCode.CONFLICT,
                "The guest agent that answers is not that of Windows; no password was set.",
                "Check that the image is a Windows image with the QEMU guest agent installed.",
            )

        def set_password(domain: Any) -> None:
            domain.agentSetResponseTimeout(GUEST_AGENT_SECONDS)
            domain.setUserPassword(account, password, 0)

        limit = GUEST_AGENT_SECONDS + 15
        try:
            await self._guests.on_domain(vm_id, "virDomainSetUserPassword", set_password, timeout=limit)
        except LibvirtError as error:
            failed = password_failed(error, account)
            if failed.code is not FailureCode.HOST:
                raise failed from None
            raise HostError(
                FailureCode.HOST,
                f"Windows refused the password of {account}.",
                "It may not meet the password policy of that Windows.",
            ) from None

    async def _is_windows(self, vm_id: UUID) -> bool:
        said = await self._guests.ask_agent(vm_id, _SystemSaid, "guest-get-osinfo")
        return said.system.id == _WINDOWS

    async def _first_boot(self, vm_id: UUID) -> bytes | None:
        """The file's content; None while there is no file."""
        try:
            opened = await self._guests.ask_agent(vm_id, _Opened, "guest-file-open", {"path": FIRST_BOOT, "mode": "rb"})
        except LibvirtError as error:
            if error.number != libvirt.VIR_ERR_INTERNAL_ERROR:
                raise
            return None
        try:
            read = await self._guests.ask_agent(
                vm_id, _Read, "guest-file-read", {"handle": opened.handle, "count": _MOST_BYTES}
            )
            return base64.b64decode(read.content.text, validate=True)
        finally:
            with suppress(LibvirtError, ValueError):  # If this fails, the agent closes open files when it ends.
                await self._guests.ask_agent(vm_id, _Closed, "guest-file-close", {"handle": opened.handle})
