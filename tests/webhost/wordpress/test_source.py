"""Where WordPress comes from: Debian's folder, or an archive that is the one that was named."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from svc_webhost.wordpress import WordPressError, WordPressSource, WordPressTree

FILES = {
    "wordpress/wp-includes/version.php": b"<?php $wp_version = '6.9';",
    "wordpress/wp-content/languages/de_DE.mo": b"",
    "wordpress/wp-content/languages/admin-de_DE.mo": b"",
    "wordpress/index.php": b"<?php",
}


def tar(path: Path, files: dict[str, bytes] = FILES, *, link: str | None = None) -> WordPressSource:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o4777
            archive.addfile(member, io.BytesIO(content))
        if link is not None:
            outside = tarfile.TarInfo("wordpress/outside")
            outside.type, outside.linkname = tarfile.SYMTYPE, link
            archive.addfile(outside)
    return WordPressSource(path, hashlib.sha256(path.read_bytes()).hexdigest())


async def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "wp-includes").mkdir()
    (tmp_path / "wp-includes" / "version.php").write_text("<?php")

    assert await WordPressTree(WordPressSource(tmp_path), tmp_path / "unpacked").path() == tmp_path


async def test_without_the_debian_package_it_is_said_what_to_do(tmp_path: Path) -> None:
    tree = WordPressTree(WordPressSource(tmp_path / "absent"), tmp_path / "unpacked")

    with pytest.raises(WordPressError, match="apt-get install wordpress"):
        await tree.path()


async def test_an_archive_is_unpacked_once_and_readable_for_everybody(tmp_path: Path) -> None:
    source = tar(tmp_path / "wordpress.tar.gz")

    first = await WordPressTree(source, tmp_path / "unpacked").path()
    source.path.unlink()
    second = WordPressTree(source, tmp_path / "unpacked")

    assert await second.path() == first
    assert await second.languages() == {"de_DE"}
    assert (first / "index.php").read_bytes() == b"<?php"
    assert (first / "index.php").stat().st_mode & 0o7777 == 0o644
    assert (first / "wp-content").stat().st_mode & 0o7777 == 0o755


async def test_a_zip_is_an_archive_as_well(tmp_path: Path) -> None:
    path = tmp_path / "wordpress.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    source = WordPressSource(path, hashlib.sha256(path.read_bytes()).hexdigest())

    found = await WordPressTree(source, tmp_path / "unpacked").path()

    assert (found / "wp-includes" / "version.php").is_file()


async def test_another_archive_than_was_named_is_not_unpacked(tmp_path: Path) -> None:
    source = tar(tmp_path / "wordpress.tar.gz")
    other = WordPressSource(source.path, "0" * 64)

    with pytest.raises(WordPressError, match=source.sha256 or "-"):
        await WordPressTree(other, tmp_path / "unpacked").path()

    assert list((tmp_path / "unpacked").iterdir()) == []


async def test_an_archive_with_a_link_is_refused(tmp_path: Path) -> None:
    source = tar(tmp_path / "wordpress.tar.gz", link="/etc/passwd")

    with pytest.raises(WordPressError, match="neither a file nor a folder"):
        await WordPressTree(source, tmp_path / "unpacked").path()

    assert list((tmp_path / "unpacked").iterdir()) == []


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../../outside", "wordpress/../../outside"])
async def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    source = tar(tmp_path / "wordpress.tar.gz", {**FILES, name: b"x"})

    with pytest.raises(WordPressError, match="leads out of its folder"):
        await WordPressTree(source, tmp_path / "unpacked").path()

    assert list((tmp_path / "unpacked").iterdir()) == []


async def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    source = tar(tmp_path / "other.tar.gz", {"readme.txt": b"hello"})

    with pytest.raises(WordPressError, match="no WordPress"):
        await WordPressTree(source, tmp_path / "unpacked").path()

    assert list((tmp_path / "unpacked").iterdir()) == []
