"""`svc vm vnc` opens a port to everybody on the computer, and a screen to its own user alone."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from svc.cli.failures import Exit, Failure
from svc.cli.vnc import require_own


@asynccontextmanager
async def connected(*, dual_stack: bool = False) -> AsyncIterator[trio.SocketStream]:
    """The server's end of a viewer's connection."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    viewer = trio.socket.socket(socket.AF_INET6 if dual_stack else socket.AF_INET)
    async with listener:
        await viewer.connect(("::ffff:127.0.0.1" if dual_stack else "127.0.0.1", port))
        async with await listener.accept() as accepted:
            with viewer:
                yield accepted


@pytest.mark.parametrize("dual_stack", [False, True])
async def test_a_viewer_of_the_same_user_is_let_in(dual_stack: bool) -> None:
    async with connected(dual_stack=dual_stack) as viewer:
        require_own(viewer)


@pytest.mark.parametrize("dual_stack", [False, True])
async def test_a_viewer_of_another_user_is_refused(tmp_path: Path, dual_stack: bool) -> None:
    """The kernel's own tables, with another user's id on every line."""
    async with connected(dual_stack=dual_stack) as viewer:
        tables = []
        for name in ("tcp", "tcp6"):
            lines = Path(f"/proc/net/{name}").read_text().splitlines()
            owned = [re.sub(rf"^((?:\s*\S+){{7}}\s+){os.getuid()}\b", r"\g<1>65534", line) for line in lines]
            (tmp_path / name).write_text("\n".join(owned))
            tables.append(tmp_path / name)

        with pytest.raises(Failure) as refusal:
            require_own(viewer, tables)

    assert refusal.value.exit_code == Exit.FORBIDDEN


async def test_where_the_kernel_does_not_tell_nobody_is_let_in(tmp_path: Path) -> None:
    async with connected() as viewer:
        with pytest.raises(Failure, match="web page"):
            require_own(viewer, [tmp_path / "none"])
