"""What a site's values become in nginx's configuration: none of them can leave its place."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from svc_webhost.accepted import is_denied
from svc_webhost.certificate_files import CertificatePaths
from svc_webhost.folders import HostFolders
from svc_webhost.nginx import (
    App,
    Certificate,
    Domain,
    FilePath,
    FrontController,
    Login,
    PathRedirect,
    Php,
    Ports,
    ProtectedPath,
    Proxy,
    RedirectTarget,
    RequestPath,
    Serves,
    SiteServer,
    SocketPath,
    Staged,
    StaticRoot,
    Suspended,
    WordPress,
)
from svc_webhost.nginx.model import DeniedPattern, FallbackPage, ProtectedPlace
from svc_webhost.nginx.render import needs_preview_certificate, render_main, render_site
from svc_webhost.preview_certificate import PreviewCertificate

FOLDERS = HostFolders(Path("/srv/panel"))
PORTS = Ports()
ROOT = "/srv/panel/sites/s1001/public"
CERTIFICATE = Certificate(chain="/srv/panel/certificates/a/chain.pem", key="/srv/panel/certificates/a/key.pem")
PREVIEWS = PreviewCertificate(
    "previews.test", "aa", CertificatePaths(Path("/srv/panel/previews/chain.pem"), Path("/srv/panel/previews/key.pem"))
)
WORD = re.compile(r'\s+|"(?:[^"\\]|\\.)*"|[{};]|[^\s{};"]+')
"""As nginx reads its configuration, for what is rendered here."""
VARIABLES = set(
    re.findall(
        r"\w+",
        "args document_root document_uri fastcgi_path_info fastcgi_script_name host http_upgrade https"
        " is_args path_info query_string remote_addr remote_port request_method request_uri scheme server_addr"
        " server_port server_protocol svc_connection svc_port uri content_type content_length svc_content_type_options"
        " svc_charset_with_pages svc_frame_options svc_guess svc_guessing svc_body request_filename"
        " svc_referrer_policy svc_hsts svc_passwords svc_realm svc_user svc_authorization remote_user"
        " http_authorization svc_scheme svc_https svc_server_port svc_server_addr svc_previewed svc_preview_origin"
        " svc_preview_referer svc_location"
        " svc_front svc_further svc_path_info svc_rest",
    )
)

label = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
domain = st.lists(label, min_size=2, max_size=4).map(".".join)
path = st.from_regex(r"(/[A-Za-z0-9_@+~-][A-Za-z0-9._@+~-]{0,8}){1,4}", fullmatch=True)
source = st.text(st.characters(codec="utf-8"), max_size=12).map(lambda text: f"/{text}")
pattern = st.from_regex(r"(/([a-z.+]{1,4}/){0,2}(\*\*/)?)?(\*[a-z.(]{1,4}|[a-z.&]{1,4}\*?)/?", fullmatch=True)
target = st.text(st.characters(codec="utf-8"), max_size=20).flatmap(
    lambda text: st.sampled_from((f"/{text}", f"https://example.com/{text}"))
)
page = st.none() | path.map(lambda text: f"{text}.html")
serves: st.SearchStrategy[Serves] = st.one_of(
    st.builds(StaticRoot, root=path.map(lambda tail: f"/srv/panel/sites/s1001{tail}"), fallback_page=page),
    st.builds(Php, root=path.map(lambda tail: f"/srv/panel/sites/s1001{tail}"), socket=path, fallback_page=page),
    st.builds(WordPress, root=path.map(lambda tail: f"/srv/panel/sites/s1001{tail}"), socket=path),
    st.builds(App, socket=path),
    st.builds(
        Proxy,
        host=domain,
        port=st.integers(1, 65535),
        addresses=st.lists(st.ip_addresses(), min_size=1, max_size=3).map(tuple),
        tls=st.booleans(),
    ),
    st.builds(Suspended, reason=st.text(max_size=20)),
)


def valid(kind: Any, text: str) -> bool:
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError:
        return False
    return True


@st.composite
def sites(draw: st.DrawFn) -> SiteServer:
    names = draw(st.lists(domain, min_size=1, max_size=5, unique=True))
    aliases = tuple(names[1:3])
    shown = draw(st.sampled_from(((), (names[0],), (names[0], *aliases))))
    previews = {f"{number}.previews.test": name for number, name in enumerate(shown)}
    redirects = dict.fromkeys(names[3:], names[0])
    sources = draw(st.lists(source.filter(lambda text: valid(RequestPath, text)), max_size=3, unique=True))
    targets = target.filter(lambda text: valid(RedirectTarget, text))
    return SiteServer(
        number=1001,
        domain=names[0],
        aliases=aliases,
        redirects=redirects,
        denied=tuple(draw(st.lists(pattern, max_size=3))),
        protected=tuple(
            ProtectedPath(path=each, logins=(Login(login="ada", verifier="$6$salt$verifier"),))
            for each in draw(st.lists(path, max_size=2, unique=True))
        ),
        front_controllers=tuple(
            FrontController(
                path=each,
                php_file="/front/a.php",
                path_info=draw(st.booleans()),
                parameter=None,
                serves_files=draw(st.booleans()),
            )
            for each in draw(st.lists(path.filter(lambda text: not text.startswith("/front")), max_size=3, unique=True))
        ),
        path_redirects=tuple(
            PathRedirect(source=each, target=draw(targets), below=draw(st.booleans())) for each in sources
        ),
        serves=draw(serves),
        previews=previews,
        certificate=draw(st.none() | st.just(CERTIFICATE)),
        force_https=draw(st.booleans()),
        cache_assets=draw(st.booleans()),
        utf8_pages=draw(st.booleans()),
        hsts=draw(st.booleans()),
    )


def blocks(text: str) -> list[str]:
    """What opens each block, after checking that the text is words and whole blocks, and which variables it has."""
    opened, directive, depth, at = list[str](), list[str](), 0, 0
    plain = "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))
    while at < len(plain):
        word = WORD.match(plain, at)
        assert word is not None, plain[at : at + 40]
        at = word.end()
        match word[0]:
            case "{":
                opened.append(directive[0])
                depth += 1
            case "}":
                assert not directive
                depth -= 1
            case ";":
                assert directive
        if word[0] in "{};":
            directive = []
        elif word[0].strip():
            directive.append(word[0])
        assert depth >= 0
    assert depth == 0
    assert set(re.findall(r"\$([a-z_]+)", plain)) <= VARIABLES
    return opened


@given(sites(), st.sampled_from((None, PREVIEWS, replace(PREVIEWS, domain="other.test"))))
def test_any_site_is_rendered_into_whole_blocks_of_its_own(
    site: SiteServer, previews: PreviewCertificate | None
) -> None:
    text = render_site(site, FOLDERS, PORTS, previews=previews)

    opened = blocks(text)

    assert set(opened) <= {"server", "location", "upstream", "if"}
    servers = 1 + len(site.redirects) + (site.certificate is not None and site.force_https)
    previews_tls = bool(site.previews) and previews is PREVIEWS
    servers += bool(site.previews) + previews_tls
    assert needs_preview_certificate(text) == previews_tls
    assert opened.count("server") == servers
    assert text.count("location ^~ /.well-known/acme-challenge/ {") == servers
    assert ("ssl_certificate" in text) == (site.certificate is not None)


@pytest.mark.parametrize(("ports", "names"), [(Ports(), 9), (Ports(8080, 8443), 4)])
@pytest.mark.parametrize("certificate", [None, PREVIEWS])
def test_previews_translate_as_many_names_as_nginx_takes_patterns(
    ports: Ports, names: int, certificate: PreviewCertificate | None
) -> None:
    aliases = ("www.shop.example", *(f"{number}.example" for number in range(99)))
    site = SiteServer(
        number=1001,
        domain="shop.example",
        aliases=aliases,
        serves=StaticRoot(root=ROOT),
        previews={f"{number}.previews.test": name for number, name in enumerate(("shop.example", *aliases))},
    )

    patterns = re.findall(
        r'^ *sub_filter "((?:[^"\\]|\\.)*)"', render_site(site, FOLDERS, ports, None, certificate), re.M
    )

    translated = {name for each in patterns for name in re.findall(r"/([a-z0-9.]+\.example)", each)}
    assert len(patterns) <= 255
    assert len(translated) == names
    assert {"shop.example", "www.shop.example"} <= translated


@given(
    st.text(max_size=40),
    st.sampled_from(
        (Domain, FilePath, SocketPath, RequestPath, RedirectTarget, DeniedPattern, ProtectedPlace, FallbackPage)
    ),
)
def test_no_value_can_end_its_string_or_name_a_variable(text: str, kind: Any) -> None:
    for value in (text, f"/{text}", f"https://a.example/{text}", f"{text}.example.com"):
        if valid(kind, value):
            assert not set(value) & set("\"'$;{}\\ \t\r\n\0")
            assert "\n" not in value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Domain, "a.example;"),
        (Domain, "a.example\n"),
        (Domain, "A.example"),
        (Domain, "*.example.com"),
        (Domain, "-a.example"),
        (Domain, "example"),
        (Domain, "a..example"),
        (Domain, "a.example."),
        (Domain, f"{'a' * 64}.example"),
        (FilePath, "/srv/../etc"),
        (FilePath, "/srv/./a"),
        (FilePath, "/srv/a b"),
        (FilePath, "srv"),
        (FilePath, "/srv/$document_root"),
        (FilePath, '/srv/"'),
        (FilePath, "/srv/a\n"),
        (SocketPath, "/" + "a" * 107),
        (DeniedPattern, "*"),
        (DeniedPattern, "/"),
        (DeniedPattern, "a*b"),
        (DeniedPattern, "*a*"),
        (DeniedPattern, "a/b"),
        (DeniedPattern, "/**/"),
        (DeniedPattern, "/a b"),
        (DeniedPattern, '/a"'),
        (ProtectedPlace, "/a/"),
        (ProtectedPlace, "a"),
        (FallbackPage, "index.html"),
        (FallbackPage, "/.hidden/index.html"),
        (FallbackPage, "/../index.html"),
        (FallbackPage, "/index.php"),
        (FallbackPage, "/index.html\n"),
        (FallbackPage, "/index"),
        (RequestPath, "/a$b"),
        (RequestPath, '/a"'),
        (RequestPath, "a"),
        (RedirectTarget, "//evil.example/"),
        (RedirectTarget, "javascript:alert(1)"),
        (RedirectTarget, "https://a.example/$host"),
        (RedirectTarget, "https://a.example/\r\nSet-Cookie: a=b"),
    ],
)
def test_what_is_not_such_a_value_is_refused(kind: Any, value: str) -> None:
    assert not valid(kind, value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Domain, "example.com"),
        (Domain, "xn--bcher-kva.example"),
        (FilePath, "/var/lib/.svc/a_b-c.d"),
        (DeniedPattern, "/**/*.bak"),
        (DeniedPattern, "/Bücher/größe*"),
        (ProtectedPlace, "/"),
        (ProtectedPlace, "/wp-login.php"),
        (FallbackPage, "/200.html"),
        (FallbackPage, "/app/index.htm"),
        (RequestPath, "/Bücher/größe.html"),
        (RedirectTarget, "/neu?a=b%20c"),
        (RedirectTarget, "https://[2001:db8::1]:8443/a#b"),
    ],
)
def test_what_people_need_is_accepted(kind: Any, value: str) -> None:
    assert valid(kind, value)


@pytest.mark.parametrize(
    ("pattern", "denied", "shown"),
    [
        ("/private", ("/private", "/private/", "/private/a/b"), ("/privates", "/a/private", "/private.html")),
        ("/private/", ("/private/", "/private/a"), ("/private", "/privates")),
        ("old*/", ("/old/", "/a/old-1/b"), ("/old", "/old-1")),
        ("debug.log", ("/debug.log", "/a/debug.log", "/debug.log/x"), ("/debugXlog", "/a-debug.log", "/debug.logs")),
        ("*.bak", ("/a.bak", "/x/y.bak", "/.bak", "/x.bak/y"), ("/a.bak1", "/bak")),
        ("backup*", ("/backup", "/a/backup-1.zip"), ("/a-backup", "/")),
        ("/uploads/*.php", ("/uploads/a.php", "/uploads/a.php/x"), ("/uploads/a/b.php", "/a.php")),
        ("/uploads/**/*.php", ("/uploads/a.php", "/uploads/a/b.php"), ("/a.php", "/uploads/a.phps")),
        ("/a/**/x", ("/a/x", "/a/b/x", "/a/b/c/x/y"), ("/x", "/a/xx")),
        (
            "/img/**/!(*.jpg|*.PNG)",
            (
                "/img",
                "/img/",
                "/img/a",
                "/img/x/a.png",
                "/img/a.jpg/x",
                "/img/x.php/a.jpg",
                "/img/a.pHtml/b.jpg",
                "/img/.jpg/",
            ),
            ("/img/a.jpg", "/img/x/y.PNG", "/images", "/a/img/a.txt", "/img/x.phone.jpg"),
        ),
        ("token", ("/token",), ("/.well-known/acme-challenge/token",)),
        ("/.well-known", ("/.well-known/a",), ("/.well-known/acme-challenge/a",)),
    ],
)
def test_a_pattern_denies_what_gitignore_would_ignore(
    pattern: str, denied: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    assert [path for path in denied if not is_denied(pattern, path)] == []
    assert [path for path in shown if is_denied(pattern, path)] == []


EXPRESSION = re.compile(
    r'location ~\*? (\S+|"[^"]+") \{|\$uri ~\*? "([^"]+)"|split_path_info "([^"]+)"|^ *"~\*?([^"]+)"', re.MULTILINE
)
REGULAR = re.compile(r"^ *(?:location ~|if \(\$\w+ [!]?~|rewrite |fastcgi_split_path_info |\"~)", re.MULTILINE)
CLASSES_AND_ESCAPES = re.compile(r"\\.|\[[^]]+\]|\(\?<\w+>")


def expressions(text: str) -> list[str]:
    """Every regular expression of a configuration."""
    found = ["".join(match.groups("")).strip('"') for match in EXPRESSION.finditer(text)]
    assert len(found) == len(REGULAR.findall(text)), "an expression that this test does not find"
    return found


@given(sites())
def test_no_rule_of_a_site_leaves_a_line_feed_out_of_every_character(site: SiteServer) -> None:
    for expression in expressions(render_site(site, FOLDERS, PORTS) + render_main(1, FOLDERS, PORTS, "www-data")):
        plain = CLASSES_AND_ESCAPES.sub("", expression)
        assert "." not in plain or expression.startswith("(?s)"), expression
        assert "$" not in plain, f"{expression}: it ends before a line feed at the end, too"


def locations(site: SiteServer) -> list[re.Pattern[str]]:
    """What refuses paths of the site, as Python reads it."""
    found = re.findall(
        r'location (~\*?) "([^"]+)" \{\n *(?:if \(-f \S+\) \{\n *)?return 40', render_site(site, FOLDERS, PORTS)
    )
    return [re.compile(text.replace(r"\z", r"\Z"), re.IGNORECASE if kind == "~*" else 0) for kind, text in found]


@pytest.mark.parametrize(
    "path",
    [
        *("/.git/config", "/a/.git/config", "/a/.htaccess", "/wp-content/uploads/a.php", "/wp-content/uploads/x/a.sh"),
        *("/wp-content/uploads/a.pHp", "/wp-content/x/debug.sql.gz", "/wp-admin/includes/a.php", "/a/xmlrpc.php"),
        *("/wp-includes/a.php", "/wp-includes/js/tinymce/langs/a.php", "/x/readme.html", "/wp-content/a/debug.log"),
        *("/x/a.phar", "/x/a.phps", "/x/a.PHP", "/x/a.php~", "/x/a.php.bak", "/x/a.inc", "/x/a.phtml", "/x/a.php5"),
    ],
)
def test_a_line_feed_in_a_path_opens_nothing_that_a_wordpress_keeps(path: str) -> None:
    serves = WordPress(root=ROOT, socket="/srv/panel/run/php.sock")
    refused = locations(SiteServer(number=1001, domain="a.example", serves=serves))
    name = path.rpartition("/")[2]
    folders = path.removesuffix(name)
    below = f"{folders}x\n/{name}" if folders.count("/") > 1 or name[0] != "." else path
    variants = [path, path.replace("/a.", "/x\na."), path.replace("/a/", "/a\n/"), path.replace("/x/", "/\nx/")]

    assert [each for each in variants if not any(rule.search(each) for rule in refused)] == []
    if "wp-includes" not in path:
        assert any(rule.search(below) for rule in refused), below


def test_a_line_feed_in_a_path_opens_nothing_that_a_site_denies() -> None:
    for pattern in ("/up/**/*.php", "*.php", "x.php", "/up/a*", "/**/x.php"):
        assert is_denied(pattern, "/up/a\nb/x.php"), pattern
    assert is_denied("*.php", "/up/x\ny.php")
    assert not is_denied("*.php", "/up/x.php\n")


@pytest.mark.parametrize("serves", [Php(root=ROOT, socket="/srv/panel/php.sock"), StaticRoot(root=ROOT)])
def test_no_site_shows_programs_as_they_are_written(serves: Serves) -> None:
    refused = locations(SiteServer(number=1001, domain="a.example", serves=serves))

    def shown(path: str) -> bool:
        return not any(rule.search(path) for rule in refused)

    endings = (
        *("phps", "PHP", "Php", "php~", "php.bak", "php.old", "php.1", "php_save", "inc", "INC", "pht", "phtm"),
        *("php3", "php\n", "php ", "php.bak~"),
    )
    assert [ending for ending in endings if shown(f"/x/a.{ending}")] == []
    assert [
        each for each in ("html", "txt", "php.html", "phpinfo.html", "js", "phone", "zinc") if not shown(f"/a.{each}")
    ] == []
    assert shown("/a.php") == isinstance(serves, Php), "it is run, and nowhere shown"
    assert shown("/a.phar") == shown("/a.PHAR") == isinstance(serves, StaticRoot), "it is what a site offers, or runs"


def test_a_location_of_a_front_controller_has_no_name_twice() -> None:
    fronts = [("/a", False), ("/a/", False), ("/b", False), ("/b/c", False), ("/d", True), ("/wp-cron.php", False)]
    site = SiteServer(
        number=1001,
        domain="a.example",
        path_redirects=(PathRedirect(source="/b", target="/x"), PathRedirect(source="/b/", target="/x", below=True)),
        front_controllers=tuple(
            FrontController(path=path, php_file="/x.php", serves_files=serves_files) for path, serves_files in fronts
        ),
        staged=Staged(login="staging", verifier="$6$salt$verifier"),
        serves=Php(root=ROOT, socket="/srv/panel/php.sock"),
    )

    named = re.findall(r"location ((?:=|\^~) \S+) \{", render_site(site, FOLDERS, PORTS).replace('"', ""))

    assert len(named) == len(set(named))
    assert {"= /a", "^~ /a/", "= /b/c", "^~ /b/c/"} <= set(named)


@pytest.mark.parametrize(
    ("path", "php_file", "serves_files"),
    [
        ("/.well-known/acme-challenge", "/a.php", False),
        ("/.well-known/acme-challenge/x", "/a.php", True),
        ("/a", "/a/b.php", False),
        ("/", "/b.php", False),
        ("/a", "/b.php/c.php", True),
        ("/a", "/b.txt", True),
        ("/a", "/.b/c.php", True),
        ("/a b", "/c.php", True),
    ],
)
def test_a_front_controller_that_cannot_be_is_refused(path: str, php_file: str, serves_files: bool) -> None:
    with pytest.raises(ValidationError):
        FrontController(path=path, php_file=php_file, serves_files=serves_files)


def test_a_document_root_outside_of_the_sites_home_is_refused() -> None:
    site = SiteServer(number=1001, domain="a.example", serves=StaticRoot(root="/srv/panel/sites/s10010/public"))

    with pytest.raises(ValueError, match="not in the home of s1001"):
        render_site(site, FOLDERS, PORTS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"aliases": ("a.example",)}, "named twice"),
        ({"path_redirects": (PathRedirect(source="/a", target="/b"),) * 2}, "redirected twice"),
        (
            {"path_redirects": (PathRedirect(source="/.well-known/acme-challenge/x", target="/b"),)},
            "certificates depend on it",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, object], words: str) -> None:
    values = {"number": 1, "domain": "a.example", "serves": Suspended(), **given}

    with pytest.raises(ValidationError, match=words):
        SiteServer.model_validate(values)


def test_a_proxy_connects_to_the_checked_addresses_and_resolves_no_name() -> None:
    addresses = (IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1"))
    proxy = Proxy(host="backend.example", port=8080, addresses=addresses)

    text = render_site(SiteServer(number=7, domain="a.example", serves=proxy), FOLDERS, PORTS)

    assert "server 192.0.2.1:8080;" in text
    assert "server [2001:db8::1]:8080;" in text
    assert "backend.example" not in text


def test_a_site_without_certificate_listens_for_http_alone_and_forces_nobody() -> None:
    site = SiteServer(number=1001, domain="a.example", serves=StaticRoot(root=ROOT), force_https=True)

    text = render_site(site, FOLDERS, PORTS)

    assert "443" not in text
    assert "https" not in text


def test_where_the_kernel_has_no_ipv6_nothing_listens_on_it() -> None:
    ports = Ports(8080, 8443, ipv6=False)
    site = SiteServer(number=1001, domain="a.example", serves=StaticRoot(root=ROOT), certificate=CERTIFICATE)

    text = render_site(site, FOLDERS, ports) + render_main(1, FOLDERS, ports, "www-data")

    assert "[::]" not in text
    assert "listen 8443 ssl http2;" in text


def test_a_module_is_loaded_before_all_blocks_and_only_where_it_is() -> None:
    module = Path("/usr/lib/nginx/modules/ngx_http_brotli_filter_module.so")

    text = render_main(1, FOLDERS, PORTS, "www-data", module)

    assert text.index(f'load_module "{module}";') < text.index("events {") < text.index("brotli on;")
    assert "brotli" not in render_main(1, FOLDERS, PORTS, "www-data")


def test_another_certificate_at_the_same_place_makes_another_file() -> None:
    site = SiteServer(number=1001, domain="a.example", serves=StaticRoot(root=ROOT), certificate=CERTIFICATE)

    assert render_site(site, FOLDERS, PORTS, "aa") != render_site(site, FOLDERS, PORTS, "bb")


def test_names_without_a_certificate_are_served_by_http_and_sent_nowhere() -> None:
    site = SiteServer(
        number=1001,
        domain="a.example",
        aliases=("www.a.example", "b.example"),
        serves=StaticRoot(root=ROOT),
        certificate=CERTIFICATE,
        uncertified=frozenset({"b.example"}),
        force_https=True,
    )

    forced, secured, plain = render_site(site, FOLDERS, PORTS).split("\nserver {")[1:]
    only_alias = render_site(site.model_copy(update={"uncertified": frozenset({"a.example"})}), FOLDERS, PORTS)

    assert "server_name a.example www.a.example;" in forced
    assert 'return 301 "https://$host' in forced
    assert "server_name a.example www.a.example;" in secured
    assert "server_name b.example;" in plain
    assert "return 301" not in plain
    assert ROOT in plain
    assert "server_name www.a.example b.example;" in only_alias
