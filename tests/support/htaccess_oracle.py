"""Sites with .htaccess files, which Apache reads and nginx does not, asked for the same addresses, with one PHP."""

from __future__ import annotations

import http.client
import re
import ssl
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import trio

from svc_webhost.apache.htaccess import Directive, parse
from svc_webhost.apache.links import SiteLinks, reachable
from svc_webhost.htaccess.judging import DirectiveVerdict, judge
from svc_webhost.htaccess.media import alike
from svc_webhost.htaccess.situation import INDEXES, Situation
from svc_webhost.htaccess.verdicts import (
    Denied,
    FallbackPage,
    Fronted,
    HttpsForced,
    NameRedirected,
    PhpSet,
    Redirected,
    Utf8Pages,
    Verdict,
    Wish,
)
from svc_webhost.nginx import FrontController, PathRedirect, Php, Serves, SiteServer, StaticRoot, WordPress
from svc_webhost.php import PhpSettings
from tests.support.apache import accepting, apache, php_fpm
from tests.support.nginx import Sites

AT_ONCE: Final = 6
"""Sites that are asked."""
TOP: Final = PurePosixPath(".")
_SAYS: Final = """<?php
header('Content-Type: text/plain');
echo 'ran ', substr(__FILE__, strlen($_SERVER['DOCUMENT_ROOT']));
foreach (['REQUEST_URI', 'PATH_INFO', 'QUERY_STRING', 'HTTP_AUTHORIZATION'] as $name) {
    echo "\\n$name=", $_SERVER[$name] ?? '';
}
"""
"""What every file with PHP says: which it is, and what it was asked."""


@dataclass(frozen=True)
class Case:
    """A site. `texts` are its .htaccess files, by folder. `told` is what the panel was told of it. Each address is
    asked for with each of `headers`, and at each of its names where `www`."""

    name: str
    type: str
    texts: Mapping[PurePosixPath, str]
    files: Sequence[str]
    urls: Sequence[str]
    headers: Sequence[Mapping[str, str]] = ({},)
    https: bool = False
    www: bool = False
    links: Mapping[str, str] = field(default_factory=dict)
    told: tuple[Wish, ...] = ()
    only: frozenset[str] | None = None
    """Of the addresses; None: all of them."""
    differs: Mapping[str, str] = field(default_factory=dict)
    """Expressions for addresses that are answered otherwise, and the directive for which they are."""

    def judged(self, domain: str) -> dict[PurePosixPath, list[DirectiveVerdict]]:
        return {folder: judge(parse(text), self._situation(folder, domain)) for folder, text in self.texts.items()}

    def blocking(self, domain: str) -> list[tuple[PurePosixPath, DirectiveVerdict]]:
        return [
            (folder, one)
            for folder, lines in self.judged(domain).items()
            for one in lines
            if one.opinion.verdict is Verdict.BLOCKS
        ]

    def _situation(self, folder: PurePosixPath, domain: str) -> Situation:
        indexes: dict[PurePosixPath, frozenset[str]] = {}
        for file in map(PurePosixPath, self.files):
            if file.name in INDEXES:
                indexes[file.parent] = indexes.get(file.parent, frozenset()) | {file.name}
        ways = [
            (f"public/{link}", f"public/{target}") for link, target in self.links.items() if self._is_folder(target)
        ]
        settings = {wish.setting: wish.value for wish in self.told if isinstance(wish, PhpSet)}
        sent = {wish.name for wish in self.told if isinstance(wish, NameRedirected)}
        return Situation(
            folder=folder,
            php=self.type != "static",
            wordpress=self.type == "wordpress",
            force_https=HttpsForced() in self.told,
            redirects=tuple(wish for wish in self.told if isinstance(wish, Redirected)),
            fronts=frozenset(wish for wish in self.told if isinstance(wish, Fronted)),
            denied=self._denied,
            fallback_page=self.fallback_page,
            utf8_pages=Utf8Pages() in self.told,
            domain=domain,
            names={name: name in sent for name in self.aliases(domain)},
            settings=PhpSettings.model_validate(settings).model_dump(mode="json") if self.type != "static" else None,
            indexes=indexes,
            around=SiteLinks(reachable(ways)).around(PurePosixPath("public") / folder),
        )

    def _is_folder(self, name: str) -> bool:
        return any(PurePosixPath(file).is_relative_to(name) and file != name for file in self.files)

    @property
    def _denied(self) -> frozenset[str]:
        return frozenset(wish.pattern for wish in self.told if isinstance(wish, Denied))

    @property
    def fallback_page(self) -> str | None:
        return next((wish.path for wish in self.told if isinstance(wish, FallbackPage)), None)

    def aliases(self, domain: str) -> tuple[str, ...]:
        return (f"www.{domain}",) if self.www else ()

    def translated(self, domain: str) -> Case:
        """With what its files wish for told to the panel."""
        wishes = [wish for _, one in self.blocking(domain) for wish in one.opinion.wishes]
        return replace(self, told=(*self.told, *dict.fromkeys(wishes)))

    def without(self, lines: Mapping[PurePosixPath, Iterable[Directive]]) -> Case:
        """As if these lines were not in its files."""
        texts = dict(self.texts)
        for folder, directives in lines.items():
            kept = texts[folder].split("\n")
            for directive in directives:
                begin = directive.line - 1
                end = begin
                while kept[end].removesuffix("\r").endswith("\\") and end + 1 < len(kept):
                    end += 1
                kept[begin : end + 1] = [""] * (end + 1 - begin)
            texts[folder] = "\n".join(kept)
        return replace(self, texts=texts)

    def without_what_blocks(self, domain: str) -> Case:
        """With those lines alone that block nothing; that may take several rounds, as lines hang together."""
        case = self
        while blocking := case.blocking(domain):
            lines: dict[PurePosixPath, list[Directive]] = {}
            for folder, one in blocking:
                lines.setdefault(folder, []).append(one.directive)
            case = case.without(lines)
        return case

    def furnish(self, root: Path) -> None:
        for name in self.files:
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_SAYS if name.endswith(".php") else f"this is {name}")
        for name, target in self.links.items():
            (root / name).symlink_to(target)
        for folder, text in self.texts.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / ".htaccess").write_text(text, newline="")

    def server(self, nginx: Sites, number: int, php: Path) -> SiteServer:
        root = nginx.folders.sites / f"s{number}" / "public"
        root.mkdir(parents=True)
        self.furnish(root)
        domain = domain_of(number)
        sent = {wish.name for wish in self.told if isinstance(wish, NameRedirected)}
        aliases = self.aliases(domain)
        return SiteServer(
            number=number,
            domain=domain,
            aliases=tuple(name for name in aliases if name not in sent),
            redirects={name: domain for name in aliases if name in sent},
            path_redirects=tuple(
                PathRedirect.model_validate(
                    {"source": wish.path, "target": wish.target, "status": wish.status, "below": wish.below}
                )
                for wish in dict.fromkeys(self.told)
                if isinstance(wish, Redirected)
            ),
            denied=tuple(sorted(self._denied)),
            front_controllers=tuple(
                FrontController.model_validate(asdict(wish)) for wish in self.told if isinstance(wish, Fronted)
            ),
            serves=self._serves(root, php),
            utf8_pages=Utf8Pages() in self.told,
            certificate=nginx.certificate(domain) if self.https else None,
            force_https=HttpsForced() in self.told,
        )

    def _serves(self, root: Path, php: Path) -> Serves:
        match self.type:
            case "static":
                return StaticRoot(root=str(root), fallback_page=self.fallback_page)
            case "php":
                return Php(root=str(root), socket=str(php), fallback_page=self.fallback_page)
            case _:
                return WordPress(root=str(root), socket=str(php))

    def asked(self, domain: str) -> list[Asked]:
        schemes = ("http", "https") if self.https else ("http",)
        hosts = (domain, *self.aliases(domain))
        addresses = dict.fromkeys((*usual_addresses(self.files, self.texts, php=self.type != "static"), *self.urls))
        return [
            Asked(scheme, host, path, tuple(headers.items()))
            for scheme in schemes
            for host in hosts
            for headers in self.headers
            for path in addresses
            if self.only is None or path in self.only
        ]


def domain_of(number: int) -> str:
    return f"site{number}.example"


def corpus(file: Path, domain: str) -> Case:
    """With the site's name where the file has `@domain@`, and as an expression where it has `@DOMAIN@`."""

    def named(text: str) -> str:
        return text.replace("@domain@", domain).replace("@DOMAIN@", re.escape(domain))

    given = tomllib.loads(file.read_text())
    return Case(
        name=file.stem,
        type=given["type"],
        texts={PurePosixPath(folder): named(text) for folder, text in given["htaccess"].items()},
        files=given["files"],
        urls=given["urls"],
        headers=given.get("headers", [{}]),
        https=given.get("https", False),
        www=given.get("www", False),
        differs=given.get("differs", {}),
    )


def usual_addresses(files: Sequence[str], texts: Iterable[PurePosixPath], *, php: bool) -> list[str]:
    """Of every file and folder, and what is asked of any site."""
    found = ["/", "/?x=1", "/.env", "/.git/config", "/missing", "/missing/", "/missing.html", "/missing.jpg?x=1"]
    found += [f"/{PurePosixPath(folder) / '.htaccess'}" for folder in texts]
    for file in map(PurePosixPath, files):
        found += [f"/{file}", f"/{file}?x=1"]
        found += [f"/{file}/more?x=1"] if php and file.suffix == ".php" else []
        for folder in [each for each in file.parents if each != TOP]:
            found += [f"/{folder}", f"/{folder}/", f"/{folder}/missing.jpg"]
    return found


class Asked(NamedTuple):
    scheme: str
    host: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}{self.path}{''.join(f' {name}: {value}' for name, value in self.headers)}"


class Answer(NamedTuple):
    """`shown` and `type` are compared where something is shown: what an error says differs."""

    status: int
    location: str | None
    shown: bytes
    type: str = ""


@dataclass(frozen=True)
class Difference:
    case: Case
    asked: Asked
    apache: Answer
    nginx: Answer

    @property
    def leaks(self) -> bool:
        """Apache denies it, and nginx does not. The same path of another host, to which nginx leads, is asked for."""
        known = self.why in (INDEX_ASKED, PAGE_FOR_FOLDER)
        return self.apache.status >= 400 > self.nginx.status and not known and not self._sent_on

    @property
    def why(self) -> str:
        """In which of the documented ways nginx is another server; else the directive, or nothing."""
        path = urlsplit(self.asked.path).path
        if self.nginx.status in (403, 404) and self.apache.status in (401, 403, 404, 410):
            return DENIED_BY_BOTH
        if (self.nginx.status == 404 or self._sent_on) and "/." in path:
            return DOTFILES
        if self.apache.status == 404 and self.nginx.shown.startswith(b"ran /index.php\n"):
            return INDEX_ASKED
        if self.apache.status == 403 and path.endswith("/") and self.nginx.shown == self._page:
            return PAGE_FOR_FOLDER
        if self.nginx.status == 404 and self.case.type == "wordpress" and KEPT_IN_WORDPRESS.search(path):
            return KEPT_BACK
        if self.apache[:3] == self.nginx[:3] and path.rpartition("/")[2].count(".") > 1:
            return INNER_ENDING
        found = (
            directive for expression, directive in self.case.differs.items() if re.search(expression, self.asked.path)
        )
        return next(found, "")

    @property
    def _page(self) -> bytes:
        return f"this is {(self.case.fallback_page or '/').removeprefix('/')}".encode()

    @property
    def _sent_on(self) -> bool:
        place = urlsplit(self.nginx.location or "")
        return f"{place.path}{'?' if place.query else ''}{place.query}" == self.asked.path

    def __str__(self) -> str:
        return f"{self.case.name}: {self.asked} is {self.apache} at Apache, {self.nginx} here"


DENIED_BY_BOTH: Final = "denied by both, with another status"
DOTFILES: Final = "dotfiles, 404 here"
INDEX_ASKED: Final = "no file, and index.php is asked here"
KEPT_BACK: Final = "of a WordPress, 404 here"
PAGE_FOR_FOLDER: Final = "a folder without an index page, for which the fallback page answers here"
INNER_ENDING: Final = "a name with several endings, whose type follows from the last one here"
OF_THE_PANEL: Final = {DENIED_BY_BOTH, DOTFILES, INDEX_ASKED, KEPT_BACK, PAGE_FOR_FOLDER, INNER_ENDING}
"""What each site answers otherwise here, whatever its files say."""
KEPT_IN_WORDPRESS: Final = re.compile(
    r"/wp-config|/xmlrpc\.php|/(readme|license)\.(html|txt)$|debug\.log$|^/wp-content/(uploads|upgrade|languages)/.*\.ph"
    r"|^/wp-admin/(install|setup-config)\.php|^/wp-admin/includes/|^/wp-includes/([^/]+\.php|theme-compat/|js/tinymce/langs/)"
)


@dataclass
class Compared:
    answers: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def leaks(self) -> list[str]:
        return [str(each) for each in self.differences if each.leaks]

    @property
    def unexplained(self) -> list[str]:
        return [str(each) for each in self.differences if not each.why]

    @property
    def owed_to_directives(self) -> list[str]:
        """The answers that are others because of what a file says."""
        return [str(each) for each in self.differences if each.why not in OF_THE_PANEL]

    @property
    def reasons(self) -> Counter[str]:
        return Counter(each.why for each in self.differences)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {why}" for why, count in self.reasons.most_common())
        return f"{self.answers} answers, {self.answers - len(self.differences)} equal, {len(self.leaks)} leaks" + (
            f" ({reasons})" if reasons else ""
        )


async def ask_both(nginx: Sites, cases: Sequence[Case], number: int) -> list[list[tuple[Asked, Answer, Answer]]]:
    """Of each case: what was asked, Apache's answer, and nginx's. `number`: of the first site."""
    with ExitStack() as running:
        php = running.enter_context(php_fpm(nginx.folders.sites / f"php{number}"))
        sites = [case.server(nginx, number + place, php) for place, case in enumerate(cases)]
        roots = {site.number: nginx.folders.sites / site.account / "public" for site in sites}
        await nginx.generations.start(sites)
        ports = running.enter_context(apache(nginx.folders.sites / f"apache{number}", sites, roots, php=php))
        await accepting(php)
        await accepting(ports[0])
        found: list[list[tuple[Asked, Answer, Answer]]] = [[] for _ in cases]
        places = iter(range(len(cases)))

        async def ask() -> None:
            for place in places:
                asked = cases[place].asked(sites[place].domain)
                theirs = await trio.to_thread.run_sync(answers, ports, asked)
                ours = await trio.to_thread.run_sync(answers, (nginx.ports.http, nginx.ports.https), asked)
                found[place] = [
                    (each, *_alike(one, other)) for each, one, other in zip(asked, theirs, ours, strict=True)
                ]

        async with trio.open_nursery() as asking:
            for _ in range(AT_ONCE):
                asking.start_soon(ask)
        return found


def _alike(apache: Answer, nginx: Answer) -> tuple[Answer, Answer]:
    """Both answers, with the same type if browsers treat both types alike. What Apache does not say is not compared:
    nginx knows more types, and says of text that it is UTF-8. XML and JSON are that by definition."""
    (theirs, _, charset), (ours, _, own) = (each.type.lower().partition(";") for each in (apache, nginx))
    same = not theirs or ours == theirs or alike(ours, theirs)
    same = same and (not charset or charset == own or not ours.startswith("text/"))
    return (apache, nginx._replace(type=apache.type)) if same else (apache, nginx)


async def compare(nginx: Sites, cases: Sequence[Case], number: int, found: Compared) -> None:
    for case, answered in zip(cases, await ask_both(nginx, cases, number), strict=True):
        found.answers += len(answered)
        found.differences += [Difference(case, asked, *both) for asked, *both in answered if both[0] != both[1]]


def answers(ports: tuple[int, int], asked: Sequence[Asked]) -> list[Answer]:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    connections: dict[tuple[str, str], http.client.HTTPConnection] = {}
    found = []
    for each in asked:
        key = (each.scheme, each.host)
        if key not in connections:
            connections[key] = _connection(*key, ports, trusting)
        connection = connections[key]
        connection.request("GET", each.path, headers={"Host": each.host, **dict(each.headers)})
        answer = connection.getresponse()
        body, location = answer.read(), answer.headers["Location"]
        if location is not None:
            # They listen on other ports than such addresses say.
            place = urlsplit(urljoin(f"{each.scheme}://{each.host}{each.path}", location))
            location = place._replace(netloc=place.hostname or "").geturl()
        shown = answer.status == 200
        kind = answer.headers["Content-Type"] or ""
        found.append(Answer(answer.status, location, body if shown else b"", kind if shown else ""))
    for connection in connections.values():
        connection.close()
    return found


def _connection(scheme: str, host: str, ports: tuple[int, int], context: ssl.SSLContext) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection("127.0.0.1", ports[0], timeout=30)
    return _NamedConnection(host, ports[1], timeout=30, context=context)


class _NamedConnection(http.client.HTTPSConnection):
    """To this machine, whatever the name."""

    def connect(self) -> None:
        plain = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        plain.connect()
        assert plain.sock is not None
        self.sock = self._context.wrap_socket(plain.sock, server_hostname=self.host)  # type: ignore[attr-defined]
