"""The module for brotli is used as long as nginx can load it, and tried again after a test that says nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_webhost.folders import HostFolders
from svc_webhost.nginx import Generations, Ports, program
from svc_webhost.nginx.program import ConfigurationTest
from tests.support.panel import RecordedLauncher


@pytest.fixture
def generations(tmp_path: Path) -> Generations:
    module = tmp_path / "ngx_http_brotli_filter_module.so"
    module.write_bytes(b"built for this nginx")
    made = Generations(HostFolders(tmp_path), RecordedLauncher(), Ports(), brotli=module)
    made._prepare()
    return made


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What nginx answers to one test after another."""
    answers: list[str | None] = []

    async def test(folders: HostFolders, main: Path) -> ConfigurationTest:
        assert "load_module" in main.read_text()
        return ConfigurationTest(answers.pop(0))

    monkeypatch.setattr(program, "test", test)
    return answers


async def used_after_each(generations: Generations, changes: int) -> list[tuple[bool, bool]]:
    """Whether the main file has changed by each change, and uses brotli then."""
    found = []
    for _ in range(changes):
        changed = await generations._try_modules()
        found.append((changed, "brotli on" in generations._main(1, None)))
    return found


@pytest.mark.parametrize(
    "refused",
    [
        "nginx did not finish the test of its configuration within 60 seconds",
        "nginx ended with status -9",
        'open() "/etc/nginx/mime.types" failed (2: No such file or directory)',
        'mkdir() "temporary/body" failed (28: No space left on device)',
        'dlopen() "/usr/lib/ngx_http_brotli_filter_module.so" failed (failed to map segment from shared object)',
    ],
    ids=["late", "killed", "replaced", "disk", "memory"],
)
async def test_a_test_that_fails_for_another_reason_is_repeated(
    generations: Generations, tested: list[str | None], refused: str
) -> None:
    tested += [refused, None]

    assert await used_after_each(generations, 3) == [(False, False), (True, True), (False, True)]
    assert tested == []


@pytest.mark.parametrize(
    "refused",
    [
        'dlopen() "/usr/lib/ngx_http_brotli_filter_module.so" failed (libbrotlienc.so.1: cannot open)',
        'module "/usr/lib/ngx_http_brotli_filter_module.so" version 1022001 instead of 1026000',
        'module "/usr/lib/ngx_http_brotli_filter_module.so" is not binary compatible',
    ],
    ids=["library", "version", "build"],
)
async def test_a_module_that_nginx_cannot_use_is_tried_once(
    generations: Generations, tested: list[str | None], refused: str
) -> None:
    tested += [refused]

    assert await used_after_each(generations, 2) == [(False, False), (False, False)]


async def test_a_module_that_was_replaced_is_off_until_a_test_has_said_something_of_it(
    generations: Generations, tested: list[str | None]
) -> None:
    tested += [None, "nginx ended with status -9", None]

    before = await used_after_each(generations, 1)
    generations._brotli_file.write_bytes(b"built for the next nginx")

    assert before == [(True, True)]
    assert await used_after_each(generations, 3) == [(True, False), (True, True), (False, True)]
