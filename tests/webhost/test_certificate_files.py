"""Certificates of sites as files: what is served is kept, whatever is uploaded meanwhile."""

from __future__ import annotations

from pathlib import Path

from svc_webhost.certificate_files import KEPT, CertificateFiles


def test_what_is_served_stays_however_many_come_and_are_refused(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "certificates")
    served = files.put(1001, "a" * 64, "chain", b"key")

    for number in range(KEPT + 3):
        files.put(1001, f"{number:064x}", "chain", b"key")

    assert served.chain.read_text() == "chain"


def test_once_another_is_served_the_newest_few_are_kept(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "certificates")
    put = [files.put(1001, f"{number:064x}", "chain", b"key") for number in range(KEPT + 3)]

    files.forget_old(1001, f"{0:064x}")

    left = {path.name for path in (tmp_path / "certificates" / "s1001").iterdir()}
    assert f"{0:064x}" in left
    assert len(left) == KEPT
    assert put[0].key.read_bytes() == b"key"


def test_files_that_were_damaged_are_put_back(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "certificates")
    paths = files.put(1001, "a" * 64, "chain", b"key")
    whole = files.holds(1001, "a" * 64, "chain", b"key")

    paths.key.write_bytes(b"")
    paths.chain.unlink()
    damaged = files.holds(1001, "a" * 64, "chain", b"key")
    files.mend(1001, "a" * 64, "chain", b"key")

    assert (whole, damaged) == (True, False)
    assert (paths.chain.read_text(), paths.key.read_bytes()) == ("chain", b"key")
    assert paths.key.stat().st_mode & 0o777 == 0o600


def test_sites_that_are_gone_leave_nothing(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "certificates")
    kept, gone = files.put(1001, "a" * 64, "chain", b"key"), files.put(1002, "a" * 64, "chain", b"key")

    files.keep_only({1001})

    assert kept.key.exists()
    assert not gone.key.parent.parent.exists()
