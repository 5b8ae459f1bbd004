"""Archives under a passphrase, at the cost of a guess that operators get."""

from __future__ import annotations

import io

import pytest

from svc.service.controller.backup import age
from svc.service.controller.backup.age import WORK_FACTOR, CannotDecrypt, Decrypting, Encrypting


def test_a_guess_at_the_passphrase_costs_256_mib_and_is_right_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(age, "WORK_FACTOR", WORK_FACTOR)
    file = io.BytesIO()
    encrypting = Encrypting(file, "four words of an operator")
    encrypting.write(b"all of it")
    encrypting.finish()
    archive = file.getvalue()

    *_, work_factor = archive.splitlines()[1].split()

    assert 128 * 8 * 2 ** int(work_factor) == 256 << 20
    assert Decrypting(io.BytesIO(archive), "four words of an operator").read(100) == b"all of it"
    with pytest.raises(CannotDecrypt):
        Decrypting(io.BytesIO(archive), "four words of an operato")
