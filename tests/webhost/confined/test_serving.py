"""How the helper takes up requests: what waits for its turn does not run out of the time that parsing has."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from svc_webhost.confined import serve
from svc_webhost.confined.protocol import PARSING_SECONDS, FileRequest, RewriteConfiguration
from svc_webhost.confined.tree import Tree


class _Stop(BaseException):
    """Ends the loop of a worker."""


class _One(SimpleQueue[Any]):
    def __init__(self, request: FileRequest) -> None:
        super().__init__()
        self._work = [(1, request, b"")]

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._work:
            raise _Stop
        return self._work.pop()


def test_the_time_of_parsing_starts_when_other_changes_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[object] = []

    @contextmanager
    def turn() -> Iterator[None]:
        happened.append("its turn")
        yield
        happened.append("others' turn")

    def handle(*_: object) -> tuple[dict[str, Any], bytes]:
        happened.append("done")
        return {}, b""

    tree = cast(Tree, SimpleNamespace(changing=turn()))
    monkeypatch.setattr(serve, "_handle", handle)
    monkeypatch.setattr(signal, "alarm", happened.append)
    here, there = socket.socketpair()
    with here, there, pytest.raises(_Stop):
        serve._work(tree, _One(RewriteConfiguration.__new__(RewriteConfiguration)), here, threading.Lock())

    assert happened == ["its turn", PARSING_SECONDS, "done", 0, "others' turn"]


def test_nothing_that_parses_waits_for_changes_in_the_midst_of_it() -> None:
    """Such a one would hold what one that changes files waits for, which holds what it waits for itself."""
    assert [each for each in FileRequest.__subclasses__() if each.parses and each.long] == []
