"""Owners and modes of a site's files, where the server cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.panel.repairs import CheckState, Diagnosis, Repair
from svc_actors.panel.repairs.permissions import Permissions
from svc_webhost import accounts
from svc_webhost.accounts import SystemAccounts
from svc_webhost.folders import HostFolders
from tests.panel.repairs.test_turns import ADA, Well, site_of


async def test_where_the_program_cannot_be_started_the_other_parts_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "_NICE", str(tmp_path / "nowhere"))
    permissions = Permissions(SystemAccounts(HostFolders(tmp_path)))
    diagnosis = Diagnosis({repair: permissions if repair is Repair.PERMISSIONS else Well() for repair in Repair})

    found = await diagnosis.of(site_of(ADA, "a.example"))

    assert [check.state for check in found] == [CheckState.UNKNOWN, *[CheckState.HEALTHY] * 5]
    assert "cannot be run" in found[0].findings[0].evidence
