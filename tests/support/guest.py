"""A guest under plain QEMU, as a test sees it: its serial console, its power button, its guest agent.

`Guest.started(...)` is a context: within it QEMU runs, with an overlay of an image and a NoCloud seed; on leaving it
QEMU is gone. Whatever is awaited of the guest has a deadline, and a deadline that passes shows the end of the console.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import trio
import yaml

MAC = "52:54:00:5e:ed:01"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class MachineType(StrEnum):
    PC = "pc"
    Q35 = "q35"


@dataclass(frozen=True)
class Seed:
    """The documents of a NoCloud seed; None leaves one out. User-data may be a text, as an owner's."""

    instance: str
    user_data: Mapping[str, object] | str
    network: Mapping[str, object] | None = None
    vendor_data: Mapping[str, object] | None = None

    def write(self, target: Path) -> Path:
        """The seed as an ISO labelled cidata."""
        folder = target.with_suffix("")
        folder.mkdir()
        (folder / "meta-data").write_text(yaml.safe_dump({"instance-id": self.instance}))
        (folder / "user-data").write_text(_cloud_config(self.user_data))
        if self.vendor_data is not None:
            (folder / "vendor-data").write_text(_cloud_config(self.vendor_data))
        if self.network is not None:
            (folder / "network-config").write_text(yaml.safe_dump(dict(self.network)))
        run("genisoimage", "-quiet", "-V", "cidata", "-J", "-r", "-o", str(target), str(folder))
        return target


def _cloud_config(data: Mapping[str, object] | str) -> str:
    return data if isinstance(data, str) else "#cloud-config\n" + yaml.safe_dump(dict(data))


def sha512_crypt(password: str) -> str:
    return run("busybox", "mkpasswd", "-m", "sha512", password).strip()


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Console:
    """The serial port: what the guest wrote, and what is typed."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._unread = ""
        self._news = trio.Event()
        self.transcript = ""

    async def pump(self) -> None:
        """Reads for as long as the port is open, also while nobody expects anything: a full port stops the guest."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for chunk in self._stream:
                text = chunk.decode(errors="replace").replace("\r", "")
                self._unread = ESCAPES.sub("", self._unread + text)
                self.transcript += text
                self._news.set()
                self._news = trio.Event()

    async def expect(self, pattern: str, within: float) -> re.Match[str]:
        """Reads on to the first match of `pattern` in what was not read yet, for at most `within` seconds."""
        compiled = re.compile(pattern, re.MULTILINE)
        with trio.move_on_after(within):
            while (found := compiled.search(self._unread)) is None:
                await self._news.wait()
            self._unread = self._unread[found.end() :]
            return found
        raise AssertionError(f"the console did not show {pattern!r}; its end was:\n{self.transcript[-3000:]}")

    async def type(self, text: str) -> None:
        await self._stream.send_all(text.encode() + b"\n")

    async def try_to_log_in(self, user: str, password: str, *, within: float) -> bool:
        """At a `login:` prompt: whether these open a shell. After a refusal the next `login:` is left unread."""
        await self.type(user)
        await self.expect("Password: ?", within)
        # login discards what is typed before it has turned the echo off, which it does unseen just after the prompt
        await trio.sleep(0.5)
        await self.type(password)
        answer = await self.expect(r"(?P<no>Login incorrect)|[#$] ?$", within)
        return answer["no"] is None

    async def log_in(self, user: str, password: str, *, within: float) -> None:
        await self.expect("login: ?$", within)
        assert await self.try_to_log_in(user, password, within=within), f"{user} was refused"

    async def run(self, command: str, *, within: float = 20) -> str:
        """A command in the open shell, and what it wrote.

        The mark's echo differs from the mark by its quotes; it may come twice, from the terminal and from the shell.
        """
        await self.type(f"{command}; echo 'end of '\"command\"")
        got = await self.expect(r"(?s)(?P<output>.*?)^end of command\n.*[#$] ?\Z", within)
        return got["output"].rpartition('"command"\n')[2]


class Monitor:
    """QEMU's JSON protocol and the guest agent's: one object a line, one answer to each command."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._unread = b""

    async def receive(self) -> dict[str, object]:
        while b"\n" not in self._unread:
            chunk = await self._stream.receive_some(65536)
            if not chunk:
                raise EOFError("the other side closed")
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    async def send(self, command: str, arguments: Mapping[str, object] | None = None) -> None:
        request = {"execute": command} | ({"arguments": dict(arguments)} if arguments else {})
        await self._stream.send_all(json.dumps(request).encode() + b"\n")

    async def ask(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """The `return` of a command; events in between are passed over."""
        await self.send(command, arguments)
        while True:
            answer = await self.receive()
            if "error" in answer:
                raise AssertionError(f"{command}: {answer['error']}")
            if "return" in answer:
                return answer["return"]


@dataclass
class Guest:
    console: Console
    monitor: Monitor
    agent: Monitor
    process: trio.Process

    @staticmethod
    @asynccontextmanager
    async def started(
        image: Path, seed: Path | None, folder: Path, *, machine: MachineType = MachineType.Q35, memory: int = 256
    ) -> AsyncIterator[Guest]:
        """A guest on an overlay in `folder`, kept from one start to the next; its disk is larger than the image."""
        overlay = folder / "disk.qcow2"
        if not overlay.exists():
            run("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(image), "-F", "qcow2", str(overlay), "4G")
        sockets = {name: folder / f"{name}.sock" for name in ("console", "monitor", "agent")}
        command = [
            *("qemu-system-x86_64", "-S", "-accel", "tcg", "-machine", machine, "-m", str(memory), "-display", "none"),
            *("-nodefaults", "-vga", "std", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
            *("-drive", f"file={overlay},if=virtio,format=qcow2"),
            *("-netdev", "user,id=net", "-device", f"virtio-net-pci,netdev=net,mac={MAC}"),
        ]
        for name, path in sockets.items():
            path.unlink(missing_ok=True)
            command += ["-chardev", f"socket,id={name},path={path},server=on,wait=off"]
        command += ["-serial", "chardev:console", "-mon", "chardev=monitor,mode=control"]
        command += ["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]
        if seed is not None:
            command += ["-drive", f"file={seed},if=virtio,format=raw,readonly=on"]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(trio.run_process, command)
            streams = [await connected(path) for path in sockets.values()]
            console, monitor, agent = streams
            guest = Guest(Console(console), Monitor(monitor), Monitor(agent), process)
            await guest.monitor.receive()  # the greeting
            await guest.monitor.ask("qmp_capabilities")
            nursery.start_soon(guest.console.pump)
            await guest.monitor.ask("cont")
            try:
                yield guest
            finally:
                for stream in streams:
                    await trio.aclose_forcefully(stream)
                nursery.cancel_scope.cancel()

    async def call_agent(self, command: str, arguments: Mapping[str, object] | None = None, *, within: float) -> object:
        """The agent's answer. What is sent before it runs waits in the channel: the deadline covers its start."""
        try:
            with trio.fail_after(within):
                return await self.agent.ask(command, arguments)
        except trio.TooSlowError:
            raise AssertionError(
                f"the guest agent did not answer {command}:\n{self.console.transcript[-2000:]}"
            ) from None

    async def press_power_button(self, *, within: float) -> int:
        """Presses it and waits until QEMU has ended; QEMU's exit code."""
        await self.monitor.send("system_powerdown")
        return await self.ended(within=within)

    async def ended(self, *, within: float) -> int:
        try:
            with trio.fail_after(within):
                return await self.process.wait()
        except trio.TooSlowError:
            raise AssertionError(f"the guest is still on:\n{self.console.transcript[-2000:]}") from None


async def connected(path: Path) -> trio.SocketStream:
    with trio.fail_after(30):
        while True:
            try:
                return await trio.open_unix_socket(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                await trio.sleep(0.02)
