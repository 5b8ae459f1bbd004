"""Which service to talk to, and as whom: a flag wins over the environment, the environment over the profile file.

Profiles live in `$XDG_CONFIG_HOME/svc/profiles.yaml`, readable by their owner alone, since they hold API tokens.
`SVC_URL` and `SVC_TOKEN` together need no profile. A profile's token is sent only to that profile's own service.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from svc.cli.failures import Exit, Failure
from svc_common.durable import write_whole

LOCAL_URL = "http://core"
"""The name of this server's core in messages; it is never resolved."""


@dataclass(frozen=True)
class Profile:
    """`trusted` is a PEM certificate: the controller's authority, or the server's own certificate as first seen;
    without it the system's authorities decide. `known_by` is the cookie, as `name=value`, with which the service
    recognises this computer at the next sign-in. `service` says which service it is; None: the controller. `socket` is
    the path of the core's socket on this server, instead of an address."""

    url: str
    token: str | None = field(default=None, repr=False)
    trusted: str | None = field(default=None, repr=False)
    known_by: str | None = field(default=None, repr=False)
    service: str | None = None
    socket: str | None = None


@dataclass(frozen=True)
class ProfileFile:
    current: str | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """The flags of this command line that choose a service; None for a flag that was not given."""

    profile: str | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    trusted_file: Path | None = None
    socket: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


def profile_path(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/root"), ".config")
    return Path(base, "svc", "profiles.yaml")


def load(environment: Mapping[str, str]) -> ProfileFile:
    """The stored profiles; empty if there is no file. Raises `Failure` for a file that cannot be used."""
    path = profile_path(environment)
    try:
        stored = yaml.safe_load(path.read_text()) or {}
        profiles = {str(name): Profile(**values) for name, values in stored.get("profiles", {}).items()}
        return ProfileFile(stored.get("current"), profiles)
    except FileNotFoundError:
        return ProfileFile()
    except OSError as error:
        raise Failure(Exit.INVALID, f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, TypeError, AttributeError) as error:
        hint = "fix it, or move it away and sign in again with `svc login`"
        raise Failure(Exit.INVALID, f"{path} does not contain profiles", hint) from error


def save(environment: Mapping[str, str], profiles: ProfileFile) -> None:
    """Replace the file atomically, so that an interrupted write loses nothing."""
    path = profile_path(environment)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = {
        "current": profiles.current,
        "profiles": {
            name: {key: value for key, value in asdict(profile).items() if value is not None}
            for name, profile in profiles.profiles.items()
        },
    }
    write_whole(path, yaml.safe_dump(content, sort_keys=False).encode(), mode=0o600)


def exposed(environment: Mapping[str, str]) -> Path | None:
    """The profile file, if others than its owner may read it."""
    path = profile_path(environment)
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return path if mode & (stat.S_IRWXG | stat.S_IRWXO) else None


def trusted_file(choice: Choice) -> Path | None:
    """The certificate to trust, if the command line or the environment names one."""
    named = choice.environment.get("SVC_CA")
    return choice.trusted_file or (Path(named) if named else None)


def choose(choice: Choice, local_core: Path | None = None) -> Profile:
    """`local_core`: the socket of a core on this server, used if no service was named."""
    environment = choice.environment
    stored = load(environment)
    named = choice.profile or environment.get("SVC_PROFILE")
    name = named or stored.current
    if name is not None and name not in stored.profiles:
        known = ", ".join(sorted(stored.profiles)) or "none"
        raise Failure(Exit.INVALID, f"there is no profile {name!r}", f"known profiles: {known}")
    base = stored.profiles.get(name or "")
    # A flag that names a profile takes precedence over an address in the environment.
    from_environment = environment.get("SVC_URL") if choice.profile is None else None
    url = choice.url or from_environment or (base.url if base else None)
    # The core on this server is used only if neither a profile nor an address was named.
    socket = choice.socket or (None if named or url else local_core)
    if socket is not None:
        token = environment.get("SVC_TOKEN") if choice.token is None else choice.token
        if token == "":
            # The user meant to give a token, but the variable is empty. Without this check, a command of root would run
            # as the administrator.
            hint = "give the token that is missing, or unset SVC_TOKEN to act as this server's administrator"
            raise Failure(Exit.INVALID, "the API token is empty; nothing was done", hint)
        return Profile(url=LOCAL_URL, token=token, socket=str(socket))
    if url is None:
        hint = "sign in with `svc login https://HOST:8443`, or choose one with `svc profile use NAME`"
        raise Failure(Exit.INVALID, "no controller is chosen", hint)
    url = normal_url(url)
    own = base if base is not None and base.url == url else None
    file = trusted_file(choice)
    environment_token = environment.get("SVC_TOKEN") if choice.profile is None else None
    return Profile(
        url=url,
        token=choice.token or environment_token or (own.token if own else None),
        trusted=certificate(file) if file else (own.trusted if own else None),
    )


def normal_url(given: str) -> str:
    """The URL `https://host:port` of an address that a user typed, with or without the scheme. Raises `Failure` if the
    address has another scheme, a path, a query or a user name, or no host."""
    url = given if "://" in given else f"https://{given}"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise Failure(Exit.INVALID, f"{given!r} is not an address: {error}") from error
    if parts.scheme != "https" or not host or parts.path not in ("", "/") or parts.query or parts.username:
        raise Failure(Exit.INVALID, f"{given!r} is not the address of a service", "it looks like https://HOST:8443")
    return f"https://{parts.netloc}"


def tls_context(profile: Profile) -> ssl.SSLContext:
    if profile.trusted is None:
        context = ssl.create_default_context()
    else:
        try:
            context = ssl.create_default_context(cadata=profile.trusted)
        except (ssl.SSLError, ValueError) as error:
            raise Failure(Exit.INVALID, "the certificate to trust is not a PEM certificate") from error
        # The pinned certificate may be the server's own and not that of an authority.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def certificate(path: Path) -> str:
    """The PEM text of a file. Raises `Failure`."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(Exit.INVALID, f"the certificate {path} cannot be read: {error}") from error
