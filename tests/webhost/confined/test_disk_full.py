"""A disk that is full: what does not fit is told, and what was there stays."""

from __future__ import annotations

import base64
import io
import os
import zipfile
from pathlib import Path
from uuid import uuid4

import pytest

from svc_common.errors import ErrorCode, ServiceError
from svc_webhost.confined.protocol import (
    Compress,
    Copy,
    Extract,
    FileRequest,
    Stat,
    UploadOpen,
    UploadWrite,
    Write,
)
from svc_webhost.confined_client import ConfinedFiles
from tests.support.site_files import give, site_folder
from tests.support.small_disk import MIB, small_disk

pytestmark = [pytest.mark.system, pytest.mark.isolated]


async def test_what_does_not_fit_is_refused_and_leaves_what_was_there(tmp_path: Path) -> None:
    content = os.urandom(3 * MIB)
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        archive.writestr("inside", os.urandom(2 * MIB))
    upload = uuid4().hex

    with small_disk(tmp_path / "disk", 24) as disk:
        site = site_folder(disk.folder)
        give(site, "page", content)
        give(site, "a.zip", into.getvalue())
        async with ConfinedFiles.open() as files:
            await files.ask(site, UploadOpen(upload))
            disk.fill(leave=MIB)
            requests: list[tuple[FileRequest, bytes]] = [
                (Write("page", True), os.urandom(2 * MIB)),
                (Copy("page", "copied"), b""),
                (Compress(["page"], "packed.tar.gz", "tar.gz"), b""),
                (Extract("a.zip", "unpacked", False), b""),
                (UploadWrite(upload, 0), base64.b64encode(os.urandom(2 * MIB))),
            ]
            codes = []
            for request, payload in requests:
                with pytest.raises(ServiceError) as refused:
                    await files.ask(site, request, payload)
                codes.append(refused.value.code)
            left = sorted(os.listdir(site.path))
            kept = (site.path / "page").read_bytes()
            temporary = os.listdir(site.path / ".svc-tmp")
            disk.empty()
            written = await files.ask(site, Write("page", True), b"fits")
            await files.ask(site, Stat("page"))

    assert codes == [ErrorCode.CAPACITY] * 5
    assert kept == content
    assert left == [".svc-tmp", "a.zip", "page"]
    assert temporary == [f"upload-{upload}"]
    assert written.result["size"] == 4
