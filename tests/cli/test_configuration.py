"""The controller's configuration file, as an operator writes it and gets it wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from svc.cli import serve
from svc.cli.failures import Exit, Failure
from svc.controller.config import ControllerConfig
from svc.service.controller.compose import RunningController
from svc_actors.mail import MAIL_VARIABLES
from tests.cli.conftest import Terminal


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ControllerConfig, Mapping[str, str]]]:
    """What the service would have been started with: the command ends where it would begin."""
    found: list[tuple[ControllerConfig, Mapping[str, str]]] = []

    @asynccontextmanager
    async def open_controller(config: ControllerConfig, environ: Mapping[str, str]) -> AsyncIterator[RunningController]:
        found.append((config, environ))
        raise Failure(Exit.OK, "as far as this test goes")
        yield

    monkeypatch.setattr(serve, "open_controller", open_controller)
    # A process logs in one way from its beginning to its end: loggers keep what they were configured with first.
    monkeypatch.setattr("svc_http.logs.configure", lambda: None)
    return found


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


def write(folder: Path, text: str, mode: int = 0o640) -> str:
    path = folder / "controller.toml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


async def test_options_win_over_the_environment_and_the_environment_over_the_file(
    terminal: Terminal, tmp_path: Path, started: list[tuple[ControllerConfig, Mapping[str, str]]]
) -> None:
    file = write(
        tmp_path,
        """
        public-host = "file.example"
        api-port = 1
        gateway-port = 2
        heartbeat = 7.5
        origin = ["https://a.example", "https://b.example/"]

        [database]
        url = "postgresql://file"
        owner-url = "postgresql://owner"
        """,
    )

    await terminal.svc(
        *("serve", "controller", "--config", file, "--api-port", "10"),
        SVC_CONTROLLER_API_PORT="20",
        SVC_CONTROLLER_GATEWAY_PORT="21",
        SVC_DATABASE_URL="postgresql://environment",
    )

    [(config, environ)] = started
    assert (config.api_port, config.gateway_port, config.operations_port) == (10, 21, 8445)
    assert (config.public_host, config.heartbeat_seconds) == ("file.example", 7.5)
    assert config.further_origins == ("https://a.example", "https://b.example")
    assert environ["SVC_DATABASE_URL"] == "postgresql://environment"
    assert environ["SVC_DATABASE_OWNER_URL"] == "postgresql://owner"


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ('public-hots = "x"', 0o640, "there is no setting public-hots"),
        ('[database]\nuri = "x"', 0o640, "there is no setting database.uri"),
        ("public-host =", 0o640, "cannot be read"),
        ('api-port = "many"', 0o640, "many"),
        ('[database]\nurl = "postgresql://u:secret@h/d"', 0o644, "everybody on this machine may read it"),
        ('[mail]\nhots = "x"', 0o640, "there is no setting mail.hots"),
        ('[mail]\nhost = "smtp.example"\nsender = "nobody"', 0o640, "sender of mail"),
        ('[mail]\nhost = "smtp.example"\nsender = "a@b.example"\nsecurity = "none"', 0o640, "in the clear"),
        ('certificate = "/etc/hosts"', 0o640, "A certificate and its private key belong together"),
        ('otlp-endpoint = "collector:4318"', 0o640, "otlp-endpoint is the address of a collector"),
        ('otlp-endpoint = "http://u:secret@collector:4318"', 0o640, "without a user or a password"),
        ("trace-ratio = 1.5", 0o640, "0.0<=x<=1.0"),
        ("[acme]\nterms = true", 0o640, "there is no setting acme.terms"),
        ('acme-contact = "x@y.example"', 0o640, "there is no setting acme-contact"),
        ("[acme]\nterms-agreed = true", 0o640, "needs a contact"),
        ('[acme]\ncontact = "x@y.example"\neab-key-id = "1"', 0o640, "give both, or neither"),
        (
            'certificate = "/etc/hosts"\ncertificate-key = "/etc/hosts"\n[acme]\ncontact = "x@y.example"',
            0o640,
            "not both",
        ),
    ],
)
async def test_a_mistake_in_the_file_is_told_and_nothing_starts(
    terminal: Terminal,
    tmp_path: Path,
    started: list[tuple[ControllerConfig, Mapping[str, str]]],
    text: str,
    mode: int,
    said: str,
) -> None:
    ended = await terminal.svc("serve", "controller", "--config", write(tmp_path, text, mode))

    assert ended.code == Exit.INVALID
    assert said in ended.err
    assert "secret" not in ended.err
    assert started == []


async def test_mail_is_set_in_a_table_of_its_own(
    terminal: Terminal, tmp_path: Path, started: list[tuple[ControllerConfig, Mapping[str, str]]]
) -> None:
    file = write(
        tmp_path,
        """
        [mail]
        host = "smtp.example"
        port = 2525
        sender = "Example Hosting <svc@example.org>"
        base-url = "https://panel.example"
        """,
    )

    await terminal.svc("serve", "controller", "--config", file, SVC_MAIL_HOST="other.example")

    [(config, _)] = started
    assert config.mail is not None
    assert (config.mail.host, config.mail.port) == ("other.example", 2525)
    assert str(config.mail.sender) == "Example Hosting <svc@example.org>"
    assert "https://panel.example" in config.origins, "the pages that links lead to may call the API"


async def test_a_certificate_by_acme_is_for_the_public_name_and_from_lets_encrypt_unless_the_file_says_more(
    terminal: Terminal, tmp_path: Path, started: list[tuple[ControllerConfig, Mapping[str, str]]]
) -> None:
    (tmp_path / "key").write_text("c2VjcmV0\n")
    little = 'public-host = "controller.example"\n[acme]\ncontact = "ops@provider.example"\nterms-agreed = true\n'
    more = f"""names = ["a.example", "b.example"]
        directory = "https://ca.example/dir"
        port = 8080
        eab-key-id = "customer-1"
        eab-key-file = "{tmp_path / "key"}"
        """

    await terminal.svc("serve", "controller", "--config", write(tmp_path, little))
    await terminal.svc("serve", "controller", "--config", write(tmp_path, little + more))

    first, second = (config.acme for config, _ in started)
    assert first is not None
    assert second is not None
    assert (first.contact, first.names, first.terms_agreed) == ("ops@provider.example", ("controller.example",), True)
    assert first.directory == "https://acme-v02.api.letsencrypt.org/directory"
    assert (second.names, second.port) == (("a.example", "b.example"), 8080)
    assert second.directory == "https://ca.example/dir"
    external = second.external_account()
    assert external is not None
    assert (external.key_id, external.mac_key) == ("customer-1", b"secret")


async def test_a_file_that_was_named_must_be_there(terminal: Terminal, tmp_path: Path) -> None:
    ended = await terminal.svc("serve", "controller", "--config", str(tmp_path / "absent.toml"))

    assert ended.code == Exit.INVALID
    assert "There is no configuration file" in ended.err


def test_every_option_is_in_the_document() -> None:
    document = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    options = {option.opts[-1].lstrip("-") for option in serve.controller.params} - {"config"}

    assert {name for name in options | set(MAIL_VARIABLES) if f"`{name}`" not in document} == set()


async def test_traces_are_set_in_the_file_or_by_opentelemetrys_own_variables(
    terminal: Terminal, tmp_path: Path, started: list[tuple[ControllerConfig, Mapping[str, str]]]
) -> None:
    file = write(tmp_path, 'otlp-endpoint = "http://file.example:4318"\ntrace-ratio = 0.5')
    serve_with_file = ("serve", "controller", "--config", file)

    await terminal.svc(*serve_with_file)
    await terminal.svc(
        *serve_with_file, OTEL_EXPORTER_OTLP_ENDPOINT="http://env.example:4318", OTEL_TRACES_SAMPLER_ARG="0.1"
    )
    await terminal.svc("serve", "controller", "--config", write(tmp_path, ""))

    found = [(config.otlp_endpoint, config.trace_ratio) for config, _ in started]
    assert found == [("http://file.example:4318", 0.5), ("http://env.example:4318", 0.1), (None, 1.0)]
