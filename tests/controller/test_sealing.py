"""The key that seals secrets: one for all time, whoever makes it and whatever happens while it is made."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from svc_actors.sealing import CannotUnseal, Sealer


def test_a_key_whose_making_was_cut_off_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(os, "fdopen", power_cut)
        with pytest.raises(KeyboardInterrupt):
            Sealer.from_file(tmp_path / "key")
    sealed = Sealer.from_file(tmp_path / "key").seal(b"secret", "purpose")
    assert Sealer.from_file(tmp_path / "key").unseal(sealed, "purpose") == b"secret"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_however_many_make_the_key_at_once_there_is_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        sealers = list(threads.map(lambda _: Sealer.from_file(tmp_path / "key"), range(64)))
    sealed = sealers[0].seal(b"secret", "purpose")
    assert {sealer.unseal(sealed, "purpose") for sealer in sealers} == {b"secret"}
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_what_was_sealed_for_one_purpose_does_not_open_for_another(tmp_path: Path) -> None:
    sealer = Sealer.from_file(tmp_path / "key")
    with pytest.raises(CannotUnseal):
        sealer.unseal(sealer.seal(b"secret", "one"), "another")
