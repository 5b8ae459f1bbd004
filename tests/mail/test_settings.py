"""The settings of mail, as an operator gets them right and wrong."""

from __future__ import annotations

import pytest

from svc_actors.mail import Security, mail_settings

GIVEN = {"SVC_MAIL_HOST": "smtp.example", "SVC_MAIL_SENDER": "svc@example.org"}


def test_without_a_host_no_mail_is_sent() -> None:
    assert mail_settings({}) is None


@pytest.mark.parametrize(("security", "port"), [("", 587), ("starttls", 587), ("tls", 465)])
def test_what_is_left_out_is_the_safe_choice(security: str, port: int) -> None:
    settings = mail_settings(GIVEN | {"SVC_MAIL_SECURITY": security})

    assert settings is not None
    assert settings.security is Security(security or "starttls")
    assert settings.port == port


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_a_relay_of_this_machine_may_do_without_tls(host: str) -> None:
    settings = mail_settings(GIVEN | {"SVC_MAIL_HOST": host, "SVC_MAIL_SECURITY": "none"})

    assert settings is not None
    assert (settings.security, settings.port) == (Security.NONE, 25)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"SVC_MAIL_SECURITY": "none"}, "in the clear"),
        ({"SVC_MAIL_SECURITY": "ssl"}, "starttls, tls or none"),
        ({"SVC_MAIL_PORT": "0"}, "65535"),
        ({"SVC_MAIL_PORT": "smtp"}, "65535"),
        ({"SVC_MAIL_SENDER": ""}, "sender"),
        ({"SVC_MAIL_SENDER": "nobody"}, "sender"),
        ({"SVC_MAIL_SENDER": "a@b.example\r\nBcc: c@d.example"}, "sender"),
        ({"SVC_MAIL_USERNAME": "svc"}, "password-file"),
        ({"SVC_MAIL_PASSWORD_FILE": "/etc/svc/p"}, "username"),
        ({"SVC_MAIL_BASE_URL": "http://panel.example"}, "https://"),
        ({"SVC_MAIL_BASE_URL": "https://panel.example/path"}, "https://"),
        ({"SVC_MAIL_HOST": ""}, "host"),
    ],
)
def test_what_cannot_be_meant_is_said(wrong: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        mail_settings(GIVEN | wrong)
