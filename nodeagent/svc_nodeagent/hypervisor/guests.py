"""The libvirt calls about one guest. A call succeeds if its goal is reached already.

A call that changes something has no deadline of its own: it may take as long as the operation of which it is a step,
because a slow host has not failed. Only queries (`domain_xml`, `open_screen`) are abandoned after
`CALL_TIMEOUT_SECONDS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

import libvirt
import libvirt_qemu
import structlog
import trio
from pydantic import BaseModel

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.connection import CALL_TIMEOUT_SECONDS, PATIENT, Connection, LibvirtError
from svc_nodeagent.hypervisor.domains import domain_cause, domain_state
from svc_nodeagent.hypervisor.files import in_thread
from svc_nodeagent.hypervisor.guest_network import Command, Interfaces, NicNotFound, ProcessStarted, Status, changes
from svc_nodeagent.hypervisor.platform_state import give_back_authority
from svc_nodeagent.protocol import DomainState, FailureCode, GuestTold, NetworkSpec, StateCause

T = TypeVar("T")
Answer = TypeVar("Answer", bound=BaseModel)
GUEST_AGENT_SECONDS = 30
TELL_SECONDS = 8.0
"""The time for configuring a guest's network at once. This is optional, and the apply operation waits for it."""
_TELL_ANSWER_SECONDS = 3
MOST_ANSWER_BYTES = 64 * 1024
"""The most bytes of a guest agent's answer. The interfaces of a guest take some hundred bytes each; parsing 9 MB of
them blocked the whole agent for 2.9 seconds."""
_POLL_SECONDS = 0.05

log = structlog.get_logger()


class Guests:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def on_domain(self, vm_id: UUID, name: str, work: Callable[[Any], T], *, timeout: float = PATIENT) -> T:
        """Call `work` on the guest's domain, in a thread; `name` as in `Connection.call`. Raises `LibvirtError`. The
        other methods are for calls in which certain errors are no failure, such as that the guest is off already."""
        return await self._connection.call(
            lambda connection: work(connection.lookupByUUIDString(str(vm_id))), name=name, timeout=timeout
        )

    async def state(self, vm_id: UUID) -> DomainState:
        try:
            return await self.on_domain(vm_id, "virDomainGetState", lambda domain: domain_state(*domain.state()))
        except LibvirtError as error:
            if error.number == libvirt.VIR_ERR_NO_DOMAIN:
                return DomainState.ABSENT
            raise

    async def size(self, vm_id: UUID) -> tuple[int, int] | None:
        """The number of processors and the MiB of memory that the guest runs with; None if it does not run."""

        def size(domain: Any) -> tuple[int, int] | None:
            if not domain.isActive():
                return None
            _, memory_kib, _, vcpus, _ = domain.info()
            return int(vcpus), int(memory_kib) // 1024

        try:
            return await self.on_domain(vm_id, "virDomainGetInfo", size)
        except LibvirtError as error:
            if error.number == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    async def define(self, xml: str) -> None:
        await self._connection.call(
            lambda connection: connection.defineXML(xml), name="virDomainDefineXML", timeout=PATIENT
        )

    async def definition(self, vm_id: UUID) -> str:
        """The stored definition, with which it is started next."""
        flags = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
        return await self.on_domain(vm_id, "virDomainGetXMLDesc", lambda domain: str(domain.XMLDesc(flags)))

    async def press_power_button(self, vm_id: UUID) -> None:
        try:
            await self.on_domain(
                vm_id,
                "virDomainShutdownFlags",
                lambda domain: domain.shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN),
            )
        except LibvirtError:
            if await self.state(vm_id) is DomainState.RUNNING:  # otherwise the guest went off meanwhile
                raise

    async def start(self, vm_id: UUID) -> None:
        await in_thread(give_back_authority)
        try:
            await self.on_domain(vm_id, "virDomainCreate", lambda domain: domain.create())
        except LibvirtError as error:
            if await self.state(vm_id) is DomainState.RUNNING:
                return
            raise HostError(error.code, f"The machine could not be started: {error.message}", error.hint) from error

    async def is_transient(self, vm_id: UUID) -> bool:
        """Whether the guest runs without a stored definition: libvirt would forget such a guest when it goes off."""
        try:
            return await self.on_domain(
                vm_id, "virDomainIsPersistent", lambda domain: bool(domain.isActive() and not domain.isPersistent())
            )
        except LibvirtError as error:
            if error.number == libvirt.VIR_ERR_NO_DOMAIN:
                return False
            raise

    async def grow_disk(self, vm_id: UUID, target: str, size_bytes: int) -> None:
        """Grow the disk of a running guest, which is notified; a disk that is large enough stays as it is."""

        def grow(domain: Any) -> None:
            if domain.blockInfo(target)[0] < size_bytes:
                domain.blockResize(target, size_bytes, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES)

        await self.on_domain(vm_id, "virDomainBlockResize", grow)

    async def resume_after_disk_error(self, vm_id: UUID) -> bool:
        """Resume a guest that was paused because a write failed; False if it is no longer paused for that."""

        def resume(domain: Any) -> bool:
            if domain_cause(*domain.state()) is not StateCause.IO_ERROR:
                return False
            domain.resume()
            return True

        return await self.on_domain(vm_id, "virDomainResume", resume, timeout=CALL_TIMEOUT_SECONDS)

    async def destroy(self, vm_id: UUID) -> None:
        def destroy(domain: Any) -> None:
            if domain.isActive():
                domain.destroyFlags(libvirt.VIR_DOMAIN_DESTROY_DEFAULT)

        try:
            await self.on_domain(vm_id, "virDomainDestroyFlags", destroy)
        except LibvirtError as error:
            if error.number not in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
                raise

    async def undefine(self, vm_id: UUID) -> None:
        """Remove only the definition: the state of firmware and TPM belongs to the machine (`platform_state`), and
        stays."""
        flags = (
            libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
            | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
            | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
            | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM
            | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_TPM
        )
        try:
            await self.on_domain(vm_id, "virDomainUndefineFlags", lambda domain: domain.undefineFlags(flags))
        except LibvirtError as error:
            if error.number != libvirt.VIR_ERR_NO_DOMAIN:
                raise

    async def set_password(self, vm_id: UUID, account: str, password_hash: str) -> None:
        """Set a password by the guest's agent. Raises `conflict` if the guest is off or its agent has not connected,
        `timed_out` if the agent does not answer."""

        def set_password(domain: Any) -> None:
            domain.agentSetResponseTimeout(GUEST_AGENT_SECONDS)
            domain.setUserPassword(account, password_hash, libvirt.VIR_DOMAIN_PASSWORD_ENCRYPTED)

        try:
            await self.on_domain(vm_id, "virDomainSetUserPassword", set_password, timeout=GUEST_AGENT_SECONDS + 15)
        except LibvirtError as error:
            raise password_failed(error, account) from error

    async def tell_network(self, vm_id: UUID, network: NetworkSpec, previous: NetworkSpec) -> GuestTold:
        """Have a running guest apply its addresses and routes at once, through its agent, and remove those of
        `previous` that `network` lacks. Never raises: a guest that is off, silent or different reads its seed at its
        next start."""
        try:
            with trio.fail_after(TELL_SECONDS):
                seen = await self.ask_agent(vm_id, Interfaces, "guest-network-get-interfaces")
                for command in changes(seen.nics(), network, previous):
                    await self._run_in_guest(vm_id, command)
        except (HostError, NicNotFound, ValueError, trio.TooSlowError) as error:
            log.info("guest.network_deferred", vm_id=str(vm_id), why=str(error) or "too slow")
            return GuestTold.AT_BOOT
        return GuestTold.TOLD

    async def _run_in_guest(self, vm_id: UUID, command: Command) -> None:
        """`ip` with these arguments, until it exits. Raises `HostError` if it fails."""
        asked = {"path": "ip", "arg": list(command), "capture-output": True}
        started = await self.ask_agent(vm_id, ProcessStarted, "guest-exec", asked)
        while True:
            answer = await self.ask_agent(vm_id, Status, "guest-exec-status", {"pid": started.process.pid})
            if answer.status.exited:
                break
            await trio.sleep(_POLL_SECONDS)
        if answer.status.exitcode != 0:
            raise HostError(FailureCode.HOST, f"The guest refused `ip {' '.join(command)}`.")

    async def ask_agent(
        self, vm_id: UUID, answer: type[Answer], command: str, arguments: dict[str, Any] | None = None
    ) -> Answer:
        """Ask the guest's agent. Raises `HostError` if the agent is absent, falls silent or refuses, `ValueError` for
        an answer in another form than `answer`."""
        text = json.dumps({"execute": command} if arguments is None else {"execute": command, "arguments": arguments})

        def ask(domain: Any) -> str:
            said = str(libvirt_qemu.qemuAgentCommand(domain, text, _TELL_ANSWER_SECONDS, 0))
            if len(said) > MOST_ANSWER_BYTES:
                raise ValueError(f"the guest's agent answered {len(said)} bytes to {command}")
            return said

        said = await self.on_domain(vm_id, f"guest agent {command}", ask, timeout=_TELL_ANSWER_SECONDS + 2)
        return answer.model_validate_json(said)

    async def domain_xml(self, vm_id: UUID) -> str:
        return await self.on_domain(
            vm_id, "virDomainGetXMLDesc", lambda domain: str(domain.XMLDesc()), timeout=CALL_TIMEOUT_SECONDS
        )

    async def open_screen(self, vm_id: UUID) -> int:
        """A descriptor connected to the guest's VNC server, which treats it as authenticated."""
        return await self.on_domain(
            vm_id,
            "virDomainOpenGraphicsFD",
            lambda domain: int(domain.openGraphicsFD(0, libvirt.VIR_DOMAIN_OPEN_GRAPHICS_SKIPAUTH)),
            timeout=CALL_TIMEOUT_SECONDS,
        )


def absent(vm_id: UUID) -> HostError:
    return HostError(FailureCode.NOT_FOUND, f"This node has no machine {vm_id}.", "See the node's inventory.")


def agent_is_silent(error: LibvirtError) -> bool:
    """Whether the error says that the guest's agent is connected and has not answered: such an agent may still do what
    it was asked. libvirt has the same error number for an absent agent."""
    return error.number == libvirt.VIR_ERR_AGENT_UNRESPONSIVE and "not connected" not in error.message.lower()


def password_failed(error: LibvirtError, account: str) -> HostError:
    """The error to report for a password that could not be set through the guest's agent."""
    if error.number == libvirt.VIR_ERR_OPERATION_INVALID:
        return HostError(
            FailureCode.CONFLICT, "The guest is not running, so its password was not changed.", "Start it first."
        )
    if agent_is_silent(error) or error.number == libvirt.VIR_ERR_AGENT_UNSYNCED:
        return HostError(
            FailureCode.TIMED_OUT,
            "The guest's agent did not answer; whether the password was changed is not known.",
            "Try again, or look at the guest's console.",
        )
    if error.number == libvirt.VIR_ERR_AGENT_UNRESPONSIVE:
        return HostError(
            FailureCode.CONFLICT,
            "The guest's agent is not running, so the password was not changed.",
            "Wait until the guest has booted; its image must bring qemu-guest-agent.",
        )
    return HostError(
        FailureCode.HOST,
        f"The guest refused to change the password of {account}.",
        "Check that the account exists; the guest's own log says why its agent refused.",
    )
