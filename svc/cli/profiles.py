"""Which service to talk to, and as whom: a flag wins over the environment, the environment over the profile file.

Profiles live in `$XDG_CONFIG_HOME/svc/profiles.yaml`, readable by their owner alone, since they hold API tokens.
`SVC_URL` and `SVC_TOKEN` together need no profile at all.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from svc.cli.failures import Exit, Failure


class Profile(BaseModel):
    """`trusted` is a PEM certificate: the controller's authority, or the server's own certificate as first seen.
    Without it the system's authorities decide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    token: str | None = None
    trusted: str | None = None


class ProfileFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    current: str | None = None
    profiles: dict[str, Profile] = {}


@dataclass(frozen=True)
class Choice:
    """What the flags of this command line said; None where they said nothing."""

    profile: str | None = None
    url: str | None = None
    token: str | None = None
    trusted_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


def profile_path(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/root"), ".config")
    return Path(base, "svc", "profiles.yaml")


def load(environment: Mapping[str, str]) -> ProfileFile:
    path = profile_path(environment)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ProfileFile()
    return ProfileFile.model_validate(yaml.safe_load(text) or {})


def save(environment: Mapping[str, str], profiles: ProfileFile) -> None:
    """Replace the file whole, by rename, so that an interrupted write loses nothing."""
    path = profile_path(environment)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        yaml.safe_dump(profiles.model_dump(exclude_none=True), file, sort_keys=False)
    temporary.replace(path)


def choose(choice: Choice) -> Profile:
    environment = choice.environment
    stored = load(environment)
    name = choice.profile or environment.get("SVC_PROFILE") or stored.current
    if name is not None and name not in stored.profiles:
        known = ", ".join(sorted(stored.profiles)) or "none"
        raise Failure(Exit.INVALID, f"there is no profile {name!r}", f"known profiles: {known}")
    base = stored.profiles.get(name or "")
    url = choice.url or environment.get("SVC_URL") or (base.url if base else None)
    if url is None:
        raise Failure(Exit.INVALID, "no controller is chosen", "sign in with `svc login https://HOST:8443`")
    trusted_file = choice.trusted_file or (Path(environment["SVC_CA"]) if "SVC_CA" in environment else None)
    same_service = base is not None and base.url == url
    return Profile(
        url=url.rstrip("/"),
        token=choice.token or environment.get("SVC_TOKEN") or (base.token if base and same_service else None),
        trusted=trusted_file.read_text() if trusted_file else (base.trusted if base and same_service else None),
    )


def tls_context(profile: Profile) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=profile.trusted) if profile.trusted else ssl.create_default_context()
    if profile.trusted:
        # The pinned certificate may be the server's own rather than an authority's.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
