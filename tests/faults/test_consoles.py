"""Consoles that are open while the controller is replaced: their people go on where they were, without a word."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest
import trio

from tests.support.deployment import Api, open_deployment
from tests.support.figures import report_figure
from tests.support.stack import BIN

pytestmark = [pytest.mark.system, pytest.mark.isolated]

PATIENCE = 60.0


class Screen:
    """What a program has written to a terminal, or to a socket."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self.unread = b""

    async def until(self, wanted: str) -> str:
        """Returns once `wanted` was written; what came before it."""
        with trio.fail_after(PATIENCE):
            while wanted.encode() not in self.unread:
                try:
                    data = await self._stream.receive_some(4096)
                except trio.BrokenResourceError:  # A terminal whose program has ended.
                    data = b""
                assert data, f"it ended without {wanted!r}: {self.unread!r}"
                self.unread += data
        before, _, self.unread = self.unread.partition(wanted.encode())
        return before.decode()


async def tickets(api: Api) -> int:
    """How many console tickets were given."""
    page = await api.insist("GET", "/activity", q="vm.console", page_size=200)
    return sum(entry["outcome"] == "ok" for entry in page["items"])


async def test_a_serial_console_and_a_viewer_go_on_when_the_controller_is_replaced_or_killed() -> None:
    async with open_deployment(nodes=1, seed=71) as house, house.api() as api:
        vm_id = (await house.order(api, "web-1"))["vm"]["id"]
        await house.settled(api, PATIENCE)
        svc, environment = str(BIN / "svc"), house.stack.cli_environment()
        keyboard, terminal = pty.openpty()
        console = await trio.lowlevel.open_process(
            [svc, "vm", "console", "web-1"], stdin=terminal, stdout=terminal, stderr=terminal, env=environment
        )
        os.close(terminal)
        viewing = await trio.lowlevel.open_process(
            [svc, "vm", "vnc", "web-1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        assert viewing.stdout is not None
        port = int(re.findall(r"\d+", await Screen(viewing.stdout).until("\n"))[-1])
        async with trio.lowlevel.FdStream(keyboard) as keys:
            shown = Screen(keys)
            await shown.until("Ctrl-] leaves")
            await shown.until("login: ")
            viewer = await trio.open_tcp_stream("127.0.0.1", port)
            await Screen(viewer).until("RFB 003.008\n")
            asked = await tickets(api)

            for way, end in (("replaced", house.stack.controller.stop), ("killed", house.stack.controller.kill)):
                await keys.send_all(b"before")
                await shown.until("before")

                await end()
                began = trio.current_time()
                await shown.until("Connecting again")
                house.stack.controller.start()
                with trio.fail_after(PATIENCE):
                    while await viewer.receive_some(4096):
                        pass
                viewer = await trio.open_tcp_stream("127.0.0.1", port)  # while nobody is there
                await shown.until("Connected again.")
                took = trio.current_time() - began
                await keys.send_all(b"after")
                await shown.until("after")
                await Screen(viewer).until("RFB 003.008\n")
                report_figure(f"controller {way}: the console was back after {took:.1f} s")

            assert await tickets(api) >= asked + 4, "no ticket is used twice"
            await api.insist("POST", f"/vms/{vm_id}/force-stop", {"confirm": "web-1"})
            await shown.until("console closed")
            with trio.fail_after(PATIENCE):
                assert await console.wait() == 0
        viewing.kill()
        await viewing.wait()
