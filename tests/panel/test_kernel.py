"""The panel stands on what services share, without the controller."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from svc.panel.catalogue import panel_registry
from svc.panel.realm import REALM
from svc.registry.openapi import document
from svc.registry.scopes import Scope
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.support.harness import PASSWORD
from tests.support.panel import open_panel

ROOT = Path(__file__).resolve().parents[2]


def test_neither_its_registry_nor_its_core_loads_anything_of_the_controller() -> None:
    program = """
import sys
from typing import Any, cast
import svc.panel.catalogue, svc_http.app, svc.cli.panel.core
svc.panel.catalogue.panel_registry()
of_the_controller = ("svc.controller", "svc.service.controller", "svc_actors.controller", "svc_nodeagent")
print([name for name in sys.modules if name.startswith(of_the_controller)])
"""

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"


def test_the_web_tier_loads_neither_the_panel_nor_a_database(tmp_path: Path) -> None:
    program = """
import sys
from svc.cli.app import run
run(["panel", "web", "--help"])
import svc_http.bridge, svc_http.certificates, svc_http.logs, svc_http.server
kept_out = ("svc.panel", "svc_actors.store", "svc_actors.panel", "asyncpg", "pydantic.")
print([name for name in sys.modules if name.startswith(kept_out)])
"""
    # Nothing is known of commands from earlier runs.
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)

    assert ran.stdout.splitlines()[-1] == "[]"


def _made(migrations: Path) -> set[str]:
    written = "\n".join(path.read_text() for path in migrations.glob("*.sql"))
    return set(re.findall(r"^CREATE TABLE (\w+)", written, re.MULTILINE))


def test_the_kernels_sql_names_no_table_of_the_controller() -> None:
    migrations = ROOT / "actors" / "svc_actors" / "store" / "migrations"
    # A table that each service has under the same name, such as that of its webhooks, is the kernel's to name.
    tables = _made(migrations / "controller") - _made(migrations / "panel")
    kernel = [path for folder in ("identity", "registry") for path in (ROOT / "svc" / folder).rglob("*.py")]

    named = {
        (path.name, table)
        for path in kernel
        for table in re.findall(r"\b(?:FROM|JOIN|UPDATE|INTO) (\w+)", path.read_text())
        if table in tables
    }

    assert {"vms", "project_members"} < tables
    assert named == set()


def test_its_document_has_sign_in_and_its_own_seven_codes() -> None:
    described = document(panel_registry())

    assert described["info"]["title"] == "Hosting Panel"
    assert described["paths"]["/auth/login"]["post"]["operationId"] == "session.login"
    body = described["components"]["schemas"]["PanelErrorBody"]
    assert sorted(body["properties"]) == sorted(body["required"]) == ["code", "hint", "message"]
    assert len(body["properties"]["code"]["enum"]) == 7
    assert described["components"]["securitySchemes"]["session"]["name"] == "svc_session"


@pytest.mark.parametrize("code", ErrorCode)
def test_no_error_leaves_it_with_a_code_or_member_of_another_service(code: ErrorCode) -> None:
    error = ServiceError(code, "What happened.", details={"of": "no concern"})

    members = REALM.failures.members(error, "4f3a")

    assert set(members) == {"code", "message", "hint"}
    assert members["code"] in {c.value for c in REALM.failures.statuses}
    assert members["hint"] == ""


@pytest.mark.parametrize(
    ("scopes", "name", "mutates", "allowed"),
    [
        ({"read"}, "site.list", False, True),
        ({"read"}, "site.create", True, False),
        ({"sites"}, "site.create", True, True),
        ({"sites"}, "dns.point", True, True),
        ({"sites"}, "staging.push", True, False),
        ({"files"}, "filer.write", True, False),
        ({"jobs"}, "job.list", False, True),
        ({"jobs"}, "job.cancel", True, False),
        ({"admin"}, "webhook.create", True, True),
        ({"made up"}, "site.list", False, False),
        (set(), "site.list", False, False),
    ],
)
def test_a_scope_is_an_area_of_operation_names(scopes: set[str], name: str, mutates: bool, allowed: bool) -> None:
    class Operation:
        scope = Scope.ADMIN

        def __init__(self) -> None:
            self.name = name
            self.mutates = mutates
            self.secret = False

    assert REALM.scopes.allows(frozenset(scopes), Operation()) is allowed


async def test_a_person_signs_in_and_gets_the_panels_cookie(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        await panel.person("ada@example.com")
        browser = panel.browser()

        wrong = await browser.post("/auth/login", {"email": "ada@example.com", "password": "a guess"})
        right = await browser.post("/auth/login", {"email": "ada@example.com", "password": PASSWORD})
        me = await browser.get("/me")

    assert wrong.status_code == 401
    assert set(wrong.json()["error"]) == {"code", "message", "hint"}
    assert right.headers["set-cookie"].startswith("svc_session=")
    assert me.json()["email"] == "ada@example.com"
    assert "sites" in me.json()["scopes"]
