"""Files that the panel gives out in parts, as `svc` writes them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from svc.cli import download as downloading
from svc.cli.client import Client
from svc.cli.download import download
from svc.cli.failures import Exit, Failure

CONTENT = bytes(range(256)) * 40


@dataclass
class Service:
    """Gives out one file. `away_after`: so many parts, and then nobody answers."""

    content: bytes = CONTENT
    name: str = "shop-20261122.sql.gz"
    away_after: int | None = None
    damaged: bool = False
    whole: bool = True
    asked: list[int] = field(default_factory=list)

    async def call(self, method: str, path: str, *, query: Mapping[str, Any]) -> dict[str, Any]:
        if self.away_after is not None and len(self.asked) >= self.away_after:
            raise Failure(Exit.UNAVAILABLE, "nobody answers")
        self.asked.append(query["offset"])
        data = self.content[query["offset"] : query["offset"] + query["limit"]]
        digest = hashlib.sha256(self.content).hexdigest()
        return {
            "offset": query["offset"],
            "data_base64": base64.b64encode(data[:-1] + b"!" if self.damaged else data).decode(),
            "size": len(self.content),
            "sha256": hashlib.sha256(data).hexdigest(),
            "version": digest,
            "name": self.name,
            "whole_sha256": digest if self.whole else None,
        }

    async def get(self, to: Path | None) -> None:
        await download(cast(Client, self), "/file", {"path": "x"}, to)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(downloading, "PART_BYTES", 1000)


async def test_a_file_is_written_under_its_own_name_and_never_over_another(tmp_path: Path) -> None:
    service = Service()

    await service.get(None)
    with pytest.raises(Failure) as refused:
        await service.get(None)

    assert (tmp_path / service.name).read_bytes() == CONTENT
    assert refused.value.exit_code == Exit.CONFLICT
    assert [path.name for path in tmp_path.iterdir()] == [service.name], "nothing unfinished is left"


async def test_a_download_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    service, to = Service(away_after=4), tmp_path / "it.gz"

    with pytest.raises(Failure):
        await service.get(to)
    before = to.exists()
    service.away_after, service.asked = None, []
    await service.get(to)

    assert not before, "the file is there whole or not at all"
    assert to.read_bytes() == CONTENT
    assert service.asked == [0, *range(4000, len(CONTENT), 1000)]


async def test_parts_of_two_versions_never_meet(tmp_path: Path) -> None:
    service, to = Service(away_after=4), tmp_path / "it.gz"
    with pytest.raises(Failure):
        await service.get(to)

    service.away_after, service.content = None, CONTENT[::-1]
    await service.get(to)

    assert to.read_bytes() == CONTENT[::-1]
    assert [path.name for path in tmp_path.iterdir()] == ["it.gz"]


async def test_what_arrives_damaged_is_not_kept(tmp_path: Path) -> None:
    service, to = Service(away_after=4), tmp_path / "it.gz"
    with pytest.raises(Failure):
        await Service(damaged=True).get(to)
    with pytest.raises(Failure):
        await service.get(to)
    [unfinished] = tmp_path.iterdir()
    unfinished.write_bytes(b"!" * 3000)

    service.away_after = None
    with pytest.raises(Failure, match="differs from the stored one"):
        await service.get(to)
    await service.get(to)

    assert to.read_bytes() == CONTENT


async def test_a_name_of_the_service_is_no_path(tmp_path: Path) -> None:
    await Service(name="../../etc/cron.d/x").get(None)

    assert [path.name for path in tmp_path.iterdir()] == ["_.._etc_cron.d_x"]


async def test_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    await Service().get(Path("-"))

    assert capfdbinary.readouterr().out == CONTENT


async def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    await Service(content=b"", whole=False).get(tmp_path / "empty")

    assert (tmp_path / "empty").read_bytes() == b""
