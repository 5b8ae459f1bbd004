"""The model of one site's nginx configuration: its names, what serves it, and its certificate.

Invariant: no value can end the quoted string that it is rendered into, nor be read as a variable of nginx: the patterns
below admit neither quotes, backslashes, dollar signs, white space nor control characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from svc_webhost import accepted
from svc_webhost.accepted import CHALLENGES

_LABEL: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"

Domain = Annotated[str, StringConstraints(pattern=rf"^{_LABEL}(\.{_LABEL})+$", max_length=253)]
"""Lower case, in the ASCII form of IDNA; not a wildcard, no dot at the end."""

_PATH: Final = r"^(/\.?[A-Za-z0-9_@+~-][A-Za-z0-9._@+~-]*)+$"

FilePath = Annotated[str, StringConstraints(pattern=_PATH, max_length=1024)]
"""Absolute, without `.` and `..`."""

SocketPath = Annotated[str, StringConstraints(pattern=_PATH, max_length=107)]
"""Path of a Unix socket; the kernel accepts 107 bytes (sun_path)."""

PROBE: Final = f"{CHALLENGES}probe"
"""The path with which the panel checks whether a site is served; there is no challenge of this name."""

RequestPath = Annotated[str, StringConstraints(pattern=accepted.REQUEST_PATH, max_length=accepted.LONGEST_PATH)]
"""A path as nginx compares it: decoded, without the query. `\\w` covers the letters of every script. nginx accepts
words of 4,096 bytes, and a letter has up to four."""

RedirectTarget = Annotated[str, StringConstraints(pattern=accepted.REDIRECT_TARGET, max_length=accepted.LONGEST_TARGET)]
"""An http or https URL, or a path of the same site, encoded. Not `//host`, which browsers read as a URL."""

DeniedPattern = Annotated[str, StringConstraints(pattern=accepted.DENIED_PATTERN, max_length=accepted.LONGEST_PATTERN)]
"""A pattern of paths, as in .gitignore: `/private` that path and everything below, `/private/` only what is below,
`debug.log` every file or folder of that name, `*.bak` and `backup*` names that end or start so, `/uploads/*.php` files
in that folder, `/uploads/**/*.php` in it and below, `/img/**/!(*.jpg|*.png)` all of that folder but such files."""

ProtectedPlace = Annotated[
    str, StringConstraints(pattern=accepted.PROTECTED_PLACE, max_length=accepted.LONGEST_PATTERN)
]
"""A folder or a file, without a slash at the end; `/` is the whole site."""

FallbackPage = Annotated[str, StringConstraints(pattern=accepted.FALLBACK_PAGE, max_length=accepted.LONGEST_PAGE)]
"""The path of a page of HTML, not in a hidden folder."""

FrontPath = Annotated[str, StringConstraints(pattern=accepted.FRONT_PATH, max_length=accepted.LONGEST_PATTERN)]
"""`/blog` that path and everything below, `/blog/` only what is below; `/` is the whole site."""

PhpProgram = Annotated[str, StringConstraints(pattern=accepted.PHP_PROGRAM, max_length=accepted.LONGEST_PATTERN)]
QueryParameter = Annotated[
    str, StringConstraints(pattern=accepted.QUERY_PARAMETER, max_length=accepted.LONGEST_PARAMETER)
]

LoginName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._@-]{1,64}$")]
PasswordVerifier = Annotated[str, StringConstraints(pattern=r"^([$./=A-Za-z0-9]{10,200}|\{SHA\}[+/A-Za-z0-9]{27}=)$")]

ProxyHost = Domain | IPv4Address | IPv6Address

Port = Annotated[int, Field(ge=1, le=65535)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StaticRoot(_Model):
    """Files. `root` lies in the home of the site's account. `fallback_page` answers, with the status 200, for paths
    that no file has."""

    kind: Literal["static"] = "static"
    root: FilePath
    fallback_page: FallbackPage | None = None


class Php(_Model):
    """Files, and PHP by FastCGI; a path that no file has is left to `fallback_page`, or `/index.php`."""

    kind: Literal["php"] = "php"
    root: FilePath
    socket: SocketPath
    fallback_page: FallbackPage | None = None


class WordPress(_Model):
    """As `Php` with `/index.php`, but without those parts of a WordPress that no visitor needs (`wordpress_rules`)."""

    kind: Literal["wordpress"] = "wordpress"
    root: FilePath
    socket: SocketPath


class App(_Model):
    """An HTTP server of the site's own, on a Unix socket."""

    kind: Literal["app"] = "app"
    socket: SocketPath


class Proxy(_Model):
    """A server elsewhere. nginx connects to `addresses` alone, and never resolves `host`: if nginx resolved it, a name
    that does not resolve would keep nginx from starting, and with it all sites; and a name that changes to an internal
    address would open that address to visitors."""

    kind: Literal["proxy"] = "proxy"
    host: ProxyHost
    port: Port
    addresses: Annotated[tuple[IPv4Address | IPv6Address, ...], Field(min_length=1, max_length=16)]
    """The addresses to which `host` resolved, each of them checked."""
    tls: bool = False
    """Whether to connect by HTTPS, and verify the certificate for `host`."""


class Suspended(_Model):
    """A page that says so, with status 503. `reason` is between provider and customer; visitors do not see it."""

    kind: Literal["suspended"] = "suspended"
    reason: Annotated[str, Field(max_length=500)] = ""


Serves = Annotated[StaticRoot | Php | WordPress | App | Proxy | Suspended, Field(discriminator="kind")]


class Certificate(_Model):
    """PEM files that the master process, root, can read: the chain with the site's certificate first."""

    chain: FilePath
    key: FilePath


class PathRedirect(_Model):
    """The query goes along where `target` has none of its own."""

    source: RequestPath
    target: RedirectTarget
    status: Literal[301, 302, 307, 308] = 301
    below: bool = False
    """Whether every path that starts with `source` is redirected as well."""


class Login(_Model):
    """`verifier` is what nginx compares the password with: crypt(3), or Apache's own MD5 or SHA-1."""

    login: LoginName
    verifier: PasswordVerifier


class Staged(Login):
    """A staging copy of a site: visitors need a password, and search engines must not list it."""


class ProtectedPath(_Model):
    """Requests for it, or for anything below it, need the password of one of `logins`."""

    path: ProtectedPlace
    logins: Annotated[tuple[Login, ...], Field(min_length=1, max_length=100)]


class FrontController(_Model):
    """A program that answers for the paths without a file in `path`; the innermost path applies. The program reads the
    requested address; with `path_info` it is also given the rest of the path as PATH_INFO, with `parameter` as that
    parameter of the query. Without `serves_files` it answers for existing files, too."""

    path: FrontPath
    php_file: PhpProgram
    path_info: bool = False
    parameter: QueryParameter | None = None
    serves_files: bool = True

    @model_validator(mode="after")
    def _leads_elsewhere(self) -> Self:
        if not accepted.is_front_controller(self.path, self.php_file, serves_files=self.serves_files):
            raise ValueError("the web server cannot lead this path to this program")
        if self.path_info and self.parameter is not None:
            raise ValueError("the path is given either as PATH_INFO or as a parameter")
        return self


class SiteServer(_Model):
    number: Annotated[int, Field(ge=1, le=2**31 - 1)]
    """The site's account is `s<number>`."""
    domain: Domain
    aliases: tuple[Domain, ...] = ()
    """Further names under which the site is served."""
    redirects: Mapping[Domain, Domain] = Field(default_factory=dict)
    """Hosts that send visitors to the same path of another host."""
    path_redirects: tuple[PathRedirect, ...] = ()
    denied: tuple[DeniedPattern, ...] = ()
    """Paths for which visitors get 403."""
    protected: tuple[ProtectedPath, ...] = ()
    """Ignored for a staging copy (`staged`), which has a password for the whole site."""
    front_controllers: tuple[FrontController, ...] = ()
    """Of a site that runs PHP, besides `/index.php` for the whole site, which one of the path `/` replaces."""
    serves: Serves
    certificate: Certificate | None = None
    """None: the site is served only by HTTP, and TLS handshakes for its names are rejected."""
    uncertified: frozenset[Domain] = frozenset()
    """Names that the certificate does not cover. Nobody is sent from HTTP to HTTPS there, which browsers warn of."""
    force_https: bool = False
    """Whether to redirect from HTTP to HTTPS, once there is a certificate."""
    staged: Staged | None = None
    """Applies to the aliases, too. Certificate authorities can reach challenges without the password."""
    cache_assets: bool = False
    """Whether browsers may keep files whose name has a hash of their content (`assets.HASHED`) for a year. For sites
    whose files nginx serves."""
    utf8_pages: bool = False
    """Whether files of HTML are sent as UTF-8. Without it they say their character set themselves."""
    hsts: bool = False
    """Whether browsers must use HTTPS for a year; browsers that have seen this keep to it."""
    previews: Mapping[Domain, Domain] = Field(default_factory=dict)
    """Preview names, and the name of the site that each one shows (`svc_webhost.nginx.previews`). They are served by
    HTTPS if the certificate that all previews share is for them."""

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = Counter(self.hosts)
        if twice := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"named twice: {', '.join(twice)}")
        if unknown := set(self.previews.values()).difference((self.domain, *self.aliases)):
            raise ValueError(f"previews of names that it is not served by: {', '.join(sorted(unknown))}")
        sources = Counter((each.source, each.below) for each in self.path_redirects)
        if again := [source for (source, _), times in sources.items() if times > 1]:
            raise ValueError(f"redirected twice: {', '.join(again)}")
        if len({each.path for each in self.protected}) < len(self.protected):
            raise ValueError("protected twice")
        if len({each.path for each in self.front_controllers}) < len(self.front_controllers):
            raise ValueError("two front controllers of one path")
        if any(each.source.startswith(CHALLENGES) for each in self.path_redirects):
            raise ValueError(f"{CHALLENGES} is not redirected: certificates depend on it")
        return self

    @property
    def asks_for_passwords(self) -> bool:
        return bool(self.protected) and self.staged is None

    @property
    def account(self) -> str:
        return f"s{self.number}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every name that it answers for."""
        return (self.domain, *self.aliases, *self.redirects, *self.previews)
