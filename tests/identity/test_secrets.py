"""The secrets that people carry from a mail to a terminal."""

from __future__ import annotations

from svc_actors.secrets import new_secret


def test_no_secret_is_taken_for_an_option_of_a_command() -> None:
    assert not [secret for secret in (new_secret() for _ in range(2000)) if secret.startswith("-")]
