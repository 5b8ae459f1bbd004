"""Parsers of what tenants, visitors and other hosts write: each takes a time that grows with the text's length.

Processor time is compared with that of an ordinary text of the same size and parser. Where a parser were quadratic, its
worst text of this size would take hundreds of times as long, and most took minutes before.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import NamedTuple

import pytest

from svc_actors.panel.accounts.traffic import sums
from svc_webhost.apache.htaccess import MOST_DEPTH, TOO_DEEP, parse
from svc_webhost.apache.links import SiteLinks, reachable
from svc_webhost.apache.passwords import NoPasswordsError, read_passwords
from svc_webhost.archives import cpmove, directadmin, fetched, hestia, plesk, reading, virtualmin
from svc_webhost.archives.applications import database_of, rewritten
from svc_webhost.archives.crontab import NoTaskError, read_crontab, typed
from svc_webhost.archives.extensions import extensions_of
from svc_webhost.archives.model import FoundSite, Survey
from svc_webhost.archives.zonefile import read_zone
from svc_webhost.confined.pages import paths_of_sitemap, similarity
from svc_webhost.confined.sql_rows import RowCounter
from svc_webhost.htaccess.judging import judge
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Redirected
from svc_webhost.mail.dkim import signing_data
from svc_webhost.mail.message import Draft, MessageError
from svc_webhost.php import PhpSettings
from svc_webhost.staging.addresses import Addresses
from svc_webhost.staging.phpserialize import changed
from tests.support.worst_texts import HTACCESS, KIB, SIZE, filled

MOST = 20
"""Times the processor time of an ordinary text."""
LEAST_SECONDS = 0.02
"""An ordinary text that takes less counts as taking this."""
KILLED_AFTER = 60
PLAIN_SITE = Situation(
    PurePosixPath("."),
    php=True,
    wordpress=True,
    force_https=False,
    redirects=tuple(Redirected(f"/{number}", "/b", 301, below=False) for number in range(500)),
    denied=frozenset(f"*.{number}" for number in range(100)),
    domain="shop.example",
    names={f"www{number}.shop.example": False for number in range(20)},
    settings=PhpSettings().model_dump(mode="json"),
    indexes={PurePosixPath(f"a/{number}"): frozenset({"index.php"}) for number in range(5000)},
)
OTHER_SITE = replace(PLAIN_SITE, wordpress=False)
WORDPRESS = """\
# BEGIN WordPress
<IfModule mod_rewrite.c>
RewriteEngine On
RewriteRule .* - [E=HTTP_AUTHORIZATION:%{HTTP:Authorization}]
RewriteBase /
RewriteRule ^index\\.php$ - [L]
RewriteCond %{REQUEST_FILENAME} !-f
RewriteCond %{REQUEST_FILENAME} !-d
RewriteRule . /index.php [L]
</IfModule>
# END WordPress
<Files wp-config.php>
Require all denied
</Files>
<FilesMatch "\\.(bak|sql|log)$">
Order allow,deny
Deny from all
</FilesMatch>
Options -Indexes
ExpiresByType image/png "access plus 1 month"
Header set X-Content-Type-Options nosniff
Redirect 301 /old /new
"""
WP_CONFIG = """\
<?php
/** The name of the database for WordPress */
define( 'DB_NAME', 'shop' );
define( 'DB_USER', 'ada' );
define( 'DB_PASSWORD', 'secret' );
define( 'DB_HOST', 'localhost' );
$table_prefix = 'wp_';
if ( ! defined( 'ABSPATH' ) ) { define( 'ABSPATH', __DIR__ . '/' ); }
require_once ABSPATH . 'wp-settings.php';
"""
PAGE = "<div class='a'><p>Ordinary words of a page, <b>some</b> of them bold.</p><script>let a = 1</script></div>\n"
ZONE = 'www 3600 IN A 192.0.2.1\nmail IN MX 10 mx.example.\n@ TXT "v=spf1 -all"\n'
CRONTAB = "*/5 * * * * cd /home/ada/public_html && /usr/bin/php -q cron.php > /dev/null 2>&1\n"
DUMP = "CREATE TABLE `a` (\n  `id` int\n);\nINSERT INTO `a` VALUES (1,'one'),(2,'two'),(3,'three');\n"
LOG = '192.0.2.1 - - [30/Nov/2026:23:59:59 +0000] "GET /a HTTP/1.1" 200 1048 "-" "Mozilla/5.0"\n'
GRANT = "GRANT ALL PRIVILEGES ON `ada_shop`.* TO 'ada_shop'@'localhost' IDENTIFIED BY PASSWORD '*0'\n"
SERIALISED = 's:26:"https://shop.example/a/b/c";'


def judged(text: str, situation: Situation = PLAIN_SITE) -> object:
    return judge(parse(text), situation)


def configured(text: str) -> object:
    whole = text.encode()
    try:
        changed_text = rewritten(whole, {"DB_NAME": "a", "DB_HOST": "b"}, {"/home/ada": "/srv"})
    except ValueError:
        changed_text = b""
    return database_of(whole), changed_text


def tasks(text: str) -> object:
    site = FoundSite("shop.example", "homedir/public_html", old_home="/home/ada", home_in_archive="homedir")
    found = []
    for task in read_crontab(text):
        try:
            found.append(typed(task, [site]))
        except NoTaskError:
            continue
    return found


def counted(text: str) -> object:
    counter = RowCounter()
    for line in text.encode().splitlines(keepends=True):
        counter.feed(line)
    return counter.finish()


def passwords(text: str) -> object:
    try:
        return read_passwords(text.encode())
    except NoPasswordsError as error:
        return error


def survey(**texts: str) -> Survey:
    found = Survey(texts={path.replace("__", "/"): text.encode() for path, text in texts.items()})
    found.folders = {"homedir/public_html": (1, 1), "public_html": (1, 1), "": (1, 1)}
    return found


def cpanel(text: str) -> object:
    return cpmove.read(survey(cp__ada="DNS=shop.example\n", **{"mysql.sql": text}))


def cpanel_told(text: str) -> object:
    return cpmove.read(survey(cp__ada=text, userdata__main=text))


def directadmin_told(text: str) -> object:
    texts = {"backup/user.conf": "username=a\ndomain=a.example\n", "backup/crontab.conf": text}
    about = ("domain.conf", "domain.pointers", "domain.cust_httpd", "ftp.passwd", "email/aliases")
    return directadmin.read(survey(**texts, **{f"backup/a.example/{name}": text for name in about}))


def hestia_told(text: str) -> object:
    return hestia.read(survey(web__a__hestia__web=text, **{"web/a/hestia/web.conf": text, "cron/cron.conf": text}))


def virtualmin_told(text: str) -> object:
    told = {".backup/a.example_virtualmin": "dom=a.example\nhome=/home/a\n", ".backup/a.example_web": text}
    return virtualmin.read(survey(**told))


def extensions(text: str) -> object:
    site = FoundSite("a.example", "public_html")
    return extensions_of(survey(**{"public_html/php.ini": text, "public_html/composer.json": text}), site)


def names(text: str) -> object:
    paths = text.split("\n")
    return [
        (reading.nested(path), reading.needs_content(path), reading.marked(path), plesk.WANTED.fullmatch(path))
        for path in paths
    ]


def links(text: str) -> object:
    pairs = [tuple(line.split(" ", 1)) for line in text.split("\n") if " " in line]
    found = reachable([(path, leads) for path, leads in pairs])
    return [SiteLinks(found).around(PurePosixPath("public/x")), len(found)]


def replaced(text: str) -> object:
    addresses = Addresses({"shop.example": "b.example"}, ("/srv/sites/s1", "/srv/sites/s2"))
    return changed(text.encode(), addresses.replace)


def compared(text: str) -> object:
    return similarity(text.encode(), text[::2].encode())


def sitemap(text: str) -> object:
    return list(paths_of_sitemap(text.encode(), frozenset({"shop.example"})))


def logged(text: str) -> object:
    return sums(line[:8192] for line in text.splitlines())


def asked_of_a_host(text: str) -> object:
    return fetched.named_passwords(f"svc-home /home/ada\n{text}", ["/home/ada/www"])


def signed(text: str) -> object:
    return signing_data(b"From: a@b.example\r\n\r\n" + text.encode())


def drafted(text: str) -> object:
    draft = Draft.parse(b"To: " + text.encode())
    with suppress(MessageError):
        draft.recipients()
    return draft.finished("shop.example", None, None)


def lines_of_links() -> str:
    """Each link leads to the folder of the next, the last of them first."""
    chain = [f"{'public' if number == 0 else f'f{number}'}/w f{number + 1}" for number in range(SIZE // 14)]
    return "\n".join(reversed(chain))


class Parser(NamedTuple):
    parse: Callable[[str], object]
    plain: str
    worst: dict[str, str]


PARSERS = {
    "htaccess": Parser(judged, filled(WORDPRESS), HTACCESS),
    "htaccess of no WordPress": Parser(lambda text: judged(text, OTHER_SITE), filled(WORDPRESS), HTACCESS),
    "passwords named on another host": Parser(
        asked_of_a_host, filled("AuthUserFile /home/ada/.htpasswds/a\n"), {"tags": HTACCESS["many tags of blanks"]}
    ),
    "wp-config.php": Parser(
        configured,
        filled(WP_CONFIG, 4 * SIZE),
        {
            "a definition of blanks": "define('DB_NAME'," + " " * (4 * SIZE) + "x",
            "many definitions of blanks": filled("define('DB_NAME'," + " " * 1000 + "x", 4 * SIZE),
            "blanks everywhere": filled("define" + " " * 3000, 4 * SIZE),
            "values without end": filled('define("DB_NAME",\'\\', 4 * SIZE),
            "values without an end of the line": filled("define('DB_NAME', a" + " " * 2000, 4 * SIZE),
            "folders": filled("/home/ada/", 4 * SIZE),
        },
    ),
    "pages": Parser(
        compared,
        filled(PAGE),
        {
            "scripts without end": filled("<script>a "),
            "styles and comments without end": filled("<style>a <!-- b "),
            "tags without end": filled("<"),
            "comments": filled("<!---->"),
            "one word": "a" * SIZE,
        },
    ),
    "sitemaps": Parser(
        sitemap,
        filled("<url><loc>https://shop.example/a/b</loc></url>\n"),
        {
            "blanks": filled("<loc>" + " " * 3000),
            "addresses without end": filled("<loc>" + "a" * 1999),
            "one address": "<loc>https://" + "a" * SIZE,
            "blanks behind": filled("<loc>a" + " " * 3000),
        },
    ),
    "zones": Parser(
        lambda text: read_zone("shop.example", text),
        filled(ZONE),
        {
            "quotes without end": filled('"\\', 65_000) + "\n" + filled('"\\', 65_000),
            "parentheses": filled("("),
            "words in parentheses": "a TXT (\n" + filled("a " * 1000 + "\n"),
            "times": "a (\n" + filled("1 " * 1000 + "\n"),
            "origins": filled("$ORIGIN a\n"),
            "records": "".join(f"a{number} A 192.0.2.1\n" for number in range(SIZE // 20)),
            "unknown directives": filled("$a\n"),
        },
    ),
    "crontabs": Parser(
        tasks,
        filled(CRONTAB),
        {
            "digits": filled("* * * * * " + "1" * 990 + "\n"),
            "blanks": filled("* * * * * php" + " " * 980 + "a\n"),
            "redirections": filled("* * * * * " + "> " * 490 + "\n"),
            "one line": "* * * * * php " + "1" * SIZE,
            "quotes": filled("* * * * * " + "'a' " * 240 + "\n"),
            "folders": filled("* * * * * cd " + "a;" * 490 + "\n"),
        },
    ),
    "dumps": Parser(
        counted,
        filled(DUMP),
        {
            "statements": filled("INSERT x\n"),
            "tables without end": filled("INSERT INTO `a\n"),
            "columns without end": filled("INSERT INTO a (\n"),
            "blanks": filled("INSERT" + " " * 3000 + "\n"),
            "words": "INSERT " + filled("A "),
            "rows without end": "INSERT INTO a VALUES " + filled("(1"),
            "strings without end": "INSERT INTO a VALUES (" + filled("'\\'"),
            "settings": filled("SET a\n"),
        },
    ),
    "grants": Parser(
        cpanel, filled(GRANT), {"on": "GRANT " + filled(" ON a"), "to": filled("GRANT a ON a.a TO 'a TO ")}
    ),
    "descriptions of cPanel": Parser(
        cpanel_told, filled("DNS=shop.example\nmain_domain: a.example\n"), {"lists": "a:\n" + filled("- b\n")}
    ),
    "descriptions of DirectAdmin": Parser(
        directadmin_told,
        filled("1=*/5 * * * * php /home/a/domains/a.example/public_html/cron.php\n"),
        {
            "numbers": "1" * SIZE,
            "roots": filled("|?DOCROOT=`HOME`/a|\n"),
            "one root": "|?DOCROOT=`HOME`/" + "a" * SIZE,
            "values": "a=" + filled("b=%41&"),
        },
    ),
    "descriptions of Hestia": Parser(
        hestia_told, filled("DOMAIN='a.example' IP='192.0.2.1' "), {"names": "A" * SIZE, "quotes": filled("A='")}
    ),
    "descriptions of Virtualmin": Parser(
        virtualmin_told,
        filled("  ServerAlias www.a.example\n  DocumentRoot /home/a/public_html\n"),
        {"empty lines": "\n" * SIZE, "blanks": filled("ServerAlias" + " " * 3000 + "\n"), "one": " " * SIZE},
    ),
    "php.ini": Parser(
        extensions,
        filled("extension=gd.so\nmemory_limit = 128M\n"),
        {"slashes": "extension=" + "a/" * (SIZE // 2), "blanks": filled("extension" + " " * 3000), "deep": "[" * SIZE},
    ),
    "names of archives": Parser(
        names,
        filled("homedir/public_html/wp-content/plugins/a/b.php\n"),
        {
            "marks": filled("docroot" * 500 + "\n"),
            "infos": filled("info_" * 800 + "\n"),
            "dumps": filled("sqldump" * 500 + "/a/b\n"),
            "dots": filled("." * 4000 + "\n"),
            "folders": filled("a/" * 2000 + "\n"),
        },
    ),
    "links": Parser(links, filled("public/a/b/c/link public/a/b\n"), {"a chain": lines_of_links()}),
    "files of passwords": Parser(
        passwords,
        "ada:abNANd1rDfiNc\n" * 1000,
        {"rounds": "a:$6$rounds=" + "1" * (31 * KIB), "colons": ":" * (32 * KIB), "names": "a" * (32 * KIB)},
    ),
    "serialised data": Parser(
        replaced,
        f"a:{SIZE // 40}:{{" + "".join(f"i:{n};{SERIALISED}" for n in range(SIZE // 40)) + "}",
        {
            "arrays in arrays": 'a:1:{i:0;' * (SIZE // 9),
            "objects of their own": "".join(f'C:1:"a":{SIZE}:{{' for _ in range(SIZE // 15)),
            "escapes": f's:{SIZE}:"' + filled("\\41"),
            "backslashes": "\\" * SIZE,
            "slashes": "/" * SIZE,
        },
    ),
    "mail to sign": Parser(
        signed,
        filled("Thank you for your order.\r\n"),
        {
            "blanks in a line": filled("a" + " " * (SIZE - 2) + "a"),
            "blanks and letters": filled(" " * 8000 + "a"),
            "returns": filled("\r"),
            "empty lines": filled("\r\n"),
        },
    ),
    "mail": Parser(
        drafted,
        filled("a@b.example,\n "),
        {
            "returns": filled("\r"),
            "returns in a body": "a@b.example\n\n" + filled("\r"),
            "quotes": filled('"'),
            "an open quote of backslashes": '"' + filled("\\"),
            "open quotes": filled('"\\'),
            "comments": filled("("),
            "angles": filled("<"),
            "folds": filled("\n "),
            "groups": filled(":"),
        },
    ),
    "logs of visitors": Parser(
        logged,
        filled(LOG),
        {
            "times": filled("[01/Nov/2026:" * 620 + "\n"),
            "ends of times": filled("] " * 4000 + "\n"),
            "quotes": filled('] "' * 2700 + "\n"),
            "digits": filled('[30/Nov/2026:23:59:59 +0000] "a" 200 ' + "1" * 8000 + "\n"),
        },
    ),
}  # fmt: skip


def seconds(parse_text: Callable[[str], object], text: str) -> float:
    """Processor time, in a process of its own that the kernel ends if it takes for ever."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"error"
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (KILLED_AFTER, KILLED_AFTER))
            begun = time.process_time()
            parse_text(text)
            said = repr(time.process_time() - begun).encode()
        except BaseException as error:  # noqa: BLE001 - told to the test, whatever it is
            said = f"{type(error).__name__}: {error}".encode()[:500]
        finally:
            os.write(tell, said)
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert not os.WIFSIGNALED(status), f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return float(said)


@pytest.mark.parametrize("name", PARSERS)
def test_the_worst_text_takes_no_parser_much_longer_than_an_ordinary_one(name: str) -> None:
    parser = PARSERS[name]
    ordinary = max(LEAST_SECONDS, seconds(parser.parse, parser.plain))

    took = {kind: seconds(parser.parse, text) for kind, text in parser.worst.items()}

    assert {kind: round(each / ordinary, 1) for kind, each in took.items() if each > MOST * ordinary} == {}


def test_lines_in_too_many_sections_are_told_so_and_others_are_as_before() -> None:
    deep = [each.broken for each in parse("<IfModule a>\n" * (MOST_DEPTH + 1) + "Options None\n" + "</IfModule>\n" * 2)]
    back = parse("<IfModule a>\n" * (MOST_DEPTH + 1) + "</IfModule>\nOptions None\n")[0]

    assert deep[0] == TOO_DEEP
    assert (back.name, back.broken, len(back.sections)) == ("options", None, MOST_DEPTH)
