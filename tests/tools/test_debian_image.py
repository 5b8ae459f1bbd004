"""The full Debian 12 image: it boots under TCG, and its cloud-init does what the same seed asks of the demo image."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guest import Guest, Seed
from tests.tools.test_demo_image import STATIC, root_with

pytestmark = [pytest.mark.system, pytest.mark.isolated]

BOOT = 600.0
ANSWER = 300.0


async def test_cloud_init_applies_the_seed_and_the_chosen_password_opens_the_console(
    debian_image: Path, tmp_path: Path
) -> None:
    seed = Seed("debian", root_with("chosen: by me"), STATIC).write(tmp_path / "seed.iso")
    async with Guest.started(debian_image, seed, tmp_path, memory=512) as guest:
        console = guest.console
        await console.expect("demo-1 login: $", BOOT)
        assert await console.try_to_log_in("root", "chosen: by me", within=ANSWER)
        assert await console.run("hostname", within=ANSWER) == "demo-1\n"
        assert "inet 10.0.2.77/32" in await console.run("ip -4 addr show eth0", within=ANSWER)
        assert "default via 10.0.2.2" in await console.run("ip route", within=ANSWER)
        assert int((await console.run("df -m --output=size / | tail -n 1", within=ANSWER)).split()[-1]) > 3500
        await guest.call_agent("guest-ping", within=ANSWER)
        assert await guest.press_power_button(within=ANSWER) == 0
