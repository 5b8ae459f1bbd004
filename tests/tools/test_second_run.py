"""`tools/run` on a service that is there already: it finds its machine in any state, and deletes none that was made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import trio

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from tests.support.stack import ROOT


@contextmanager
def imported() -> Iterator[ModuleType]:
    """tools/demo.py, which finds the modules beside it as a script does."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import demo

        yield demo
    finally:
        sys.path.remove(str(ROOT / "tools"))


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with imported() as module:
        monkeypatch.setattr(module, "POLL", 0.0)

        async def wait(client: Service, work: Any, *, timeout: float) -> None:
            client.finish(work.id)

        monkeypatch.setattr(module.following, "wait", wait)
        yield module


@dataclass
class Service:
    """An API of lists that come page by page, and of machines that do as they are told."""

    vms: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    projects: list[str] = field(default_factory=lambda: ["default"])
    nodes: list[dict[str, Any]] = field(default_factory=list)
    refuse_start: Exit | None = None
    heals_after: int | None = None
    """Looks at a failed machine until the service itself has started it again."""
    called: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, status: str, *, built: bool = True) -> str:
        vm_id = f"id-{name}"
        self.vms[vm_id] = {"id": vm_id, "name": name, "status": status, "status_reason": None}
        self.tasks.append({"op": "vm.create", "status": "succeeded" if built else "failed", "vm": vm_id})
        return vm_id

    async def call(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None, **_: Any
    ) -> Any:
        await trio.lowlevel.checkpoint()
        self.called.append((method, path))
        query = query or {}
        match method, path.strip("/").split("/"):
            case "GET", ["vms"]:
                named = [vm for vm in self.vms.values() if query.get("q", "") in vm["name"]]
                return _page([vm for vm in named if query.get("status", vm["status"]) == vm["status"]], query)
            case "GET", ["projects"]:
                return _page([{"id": name, "name": name} for name in sorted(self.projects)], query)
            case "GET", ["nodes"]:
                return _page(self.nodes, query)
            case "GET", ["vms", vm_id]:
                return self._look(self.vms[vm_id])
            case "GET", ["vms", vm_id, "tasks"]:
                return _page([task for task in self.tasks if task["vm"] == vm_id], query)
            case "POST", ["vms", vm_id, "start"]:
                if self.refuse_start is not None:
                    raise Failure(self.refuse_start, "not now")
                return {"id": f"start {vm_id}"}
            case "POST", ["vms", vm_id, "shutdown"]:
                return {"id": f"shutdown {vm_id}"}
            case "POST", ["vms"]:
                vm_id = self.add(body["name"], "running")
                return {"vm": self.vms[vm_id], "task": {"id": f"create {vm_id}"}, "password": "secret"}
            case "DELETE", ["vms", vm_id]:
                return {"id": f"delete {vm_id}"}
        raise AssertionError(f"{method} {path}")

    def finish(self, task: str) -> None:
        order, vm_id = task.split()
        if order == "delete":
            del self.vms[vm_id]
        else:
            self.vms[vm_id]["status"] = "stopped" if order == "shutdown" else "running"

    def _look(self, vm: dict[str, Any]) -> dict[str, Any]:
        if self.heals_after is not None:
            self.heals_after -= 1
            if self.heals_after < 0:
                vm["status"] = "running"
        return vm

    @property
    def deleted(self) -> list[str]:
        return [path for method, path in self.called if method == "DELETE"]


def _page(rows: list[dict[str, Any]], query: dict[str, Any]) -> dict[str, Any]:
    size, page = int(query.get("page_size", 50)), int(query.get("page", 1))
    return {"items": rows[(page - 1) * size : page * size], "total": len(rows)}


async def run(demo: ModuleType, service: Service) -> str | None:
    """What a run does about its machine; the password of one that was made."""
    done = demo.Demo(Path("/nonexistent"), 8443)
    with trio.fail_after(20):
        return cast("str | None", await done._machine(cast(Client, service)))


@pytest.mark.parametrize("status", ["running", "stopped", "failed"])
async def test_the_machine_is_found_and_runs(demo: ModuleType, status: str) -> None:
    service = Service()
    vm_id = service.add("demo", status)

    assert await run(demo, service) is None
    assert service.vms[vm_id]["status"] == "running"
    assert service.deleted == []


@pytest.mark.parametrize("refused", [Exit.CONFLICT, Exit.UNAVAILABLE])
@pytest.mark.parametrize("status", ["failed", "stopped", "unknown", "starting", "creating", "rebooting"])
async def test_what_comes_back_by_itself_is_waited_for(demo: ModuleType, status: str, refused: Exit) -> None:
    """As after a power cut: the service starts it again, and nobody else can meanwhile."""
    service = Service(refuse_start=refused, heals_after=5)
    service.add("demo", status)

    assert await run(demo, service) is None
    assert service.deleted == []


async def test_what_does_not_come_back_is_told_and_left(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "BOOT_DEADLINE", 0.05)
    service = Service(refuse_start=Exit.CONFLICT)
    service.add("demo", "failed")

    with pytest.raises(Failure, match="the machine demo is failed") as failure:
        await run(demo, service)
    assert "nothing was deleted" in str(failure.value.hint)
    assert service.deleted == []


async def test_a_machine_whose_tasks_are_forgotten_is_not_taken_for_one_that_never_was(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "BOOT_DEADLINE", 0.05)
    service = Service(refuse_start=Exit.CONFLICT)
    service.add("demo", "failed", built=False)
    service.tasks.clear()

    with pytest.raises(Failure):
        await run(demo, service)
    assert service.deleted == []


async def test_one_whose_creation_failed_gives_way_to_a_new_one(demo: ModuleType) -> None:
    service = Service(refuse_start=Exit.CONFLICT)
    service.add("demo", "failed", built=False)

    assert await run(demo, service) == "secret"
    assert service.deleted == ["/vms/id-demo"]


async def test_the_machine_and_the_project_are_found_behind_any_number_of_others(demo: ModuleType) -> None:
    service = Service(projects=["default", *(f"customer-{number:03}" for number in range(230))])
    for number in range(450):
        service.add(f"a-demo-{number}", "running")

    assert await run(demo, service) == "secret"
    assert await run(demo, service) is None
    assert service.called.count(("POST", "/vms")) == 1


async def test_a_missing_project_is_told_in_words(demo: ModuleType) -> None:
    service = Service(projects=["renamed"])

    with pytest.raises(Failure, match="there is no project default") as failure:
        await run(demo, service)
    assert "svc project create default" in str(failure.value.hint)
    assert ("POST", "/vms") not in service.called


async def test_a_node_that_was_online_before_the_controller_started_is_waited_for(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For half a minute after a power cut the records show it as online still."""
    started = datetime.now(UTC)
    node = {"id": "1", "name": "n", "connected_at": (started - timedelta(days=1)).isoformat()}
    service = Service(nodes=[node])
    done = demo.Demo(tmp_path, 8443)
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "enrolment.json").touch()
    monkeypatch.setattr(done.node, "start", lambda: None)
    looks = 0

    def pid() -> int:
        nonlocal looks
        looks += 1
        if looks == 3:
            node["connected_at"] = datetime.now(UTC).isoformat()
        return 1

    monkeypatch.setattr(done.node, "pid", pid)
    with trio.fail_after(20):
        await done._join_node(cast(Client, service), started)
        assert looks == 3
        await done._join_node(cast(Client, service), None)
    assert looks == 4


def test_no_list_is_read_by_its_first_page_alone() -> None:
    """Each list of the API that has pages is read by `everything`."""
    text = (ROOT / "tools" / "demo.py").read_text()

    assert text.count('["items"]') == 1
