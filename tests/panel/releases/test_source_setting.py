"""Where releases may come from, as the configuration names it."""

from __future__ import annotations

from collections.abc import Mapping

import asyncclick as click
import pytest

from svc.cli.failures import Failure
from svc.cli.panel.options import panel_options
from svc.panel.config import PanelConfig


async def configured(source: str) -> str | None:
    taken: list[PanelConfig] = []

    @click.command(context_settings={"auto_envvar_prefix": "SVC_NO_PANEL"})
    @panel_options
    async def core(config: PanelConfig, environ: Mapping[str, str]) -> None:
        taken.append(config)

    await core.main(["--update-source", source], standalone_mode=False)
    return taken[0].update_source


@pytest.mark.parametrize("source", ["https://updates.example/panel", "https://updates.example:8443/", "/srv/releases"])
async def test_a_folder_and_an_https_address_are_taken(source: str) -> None:
    assert await configured(source) == source


@pytest.mark.parametrize("source", ["http://updates.example/", "releases", "https://", "https://a.example/?key=1"])
async def test_anything_else_is_refused(source: str) -> None:
    with pytest.raises(Failure, match="neither an HTTPS address nor the path of a folder"):
        await configured(source)


@pytest.mark.parametrize("credentials", ["ada:hunter2", "hunter2", ":hunter2"])
async def test_an_address_with_credentials_is_refused_and_not_repeated(credentials: str) -> None:
    """The panel shows its source to whoever reads the page of updates."""
    with pytest.raises(Failure, match="user name or password") as refused:
        await configured(f"https://{credentials}@updates.example/")

    assert "hunter2" not in str(refused.value)
