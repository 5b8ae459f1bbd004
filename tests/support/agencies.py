"""An agency's account with many sites, as cPanel and DirectAdmin pack it.

Layouts after `foreign_archives`; a site here is one of a kind (WordPress, shop, Joomla, Laravel, static, single page),
made small: its front page, log-in and upload run real PHP and ask a real database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.certificates import self_signed
from tests.support.foreign_archives import Packer, Tree

USER: Final = "agency"
OLD: Final = "198.51.100.7"
LOGIN, PASSWORD = "ada", "Correct-Horse-42"
PIXEL: Final = b"\x89PNG\r\n" + bytes(range(256))
DKIM: Final = "v=DKIM1; k=rsa; p=" + "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A" * 12 + "IDAQAB"
ROOT: Final = b"@ROOT@"
"""In files and tasks: the document root's path on the old host."""


@dataclass(frozen=True)
class Hosted:
    """`label` of a subdomain of the account's first site; None: a domain of its own. `application`: the document root
    is `public` in a folder of this name, which has `beside` too. `page` is what the front page contains, `login` the
    path of its log-in and `upload` where uploads go, if it has these."""

    domain: str
    tree: Tree
    page: str
    label: str | None = None
    application: str | None = None
    beside: Mapping[str, bytes] = field(default_factory=dict)
    database: str | None = None
    dump: str = ""
    parked: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    uploads: str | None = None
    closed: bool = False
    """A line of its .htaccess files has no equivalent here."""


@dataclass(frozen=True)
class Certified:
    """A certificate for each site, by its domain; each with its key."""

    pems: Mapping[str, tuple[str, str]]

    @property
    def trusted(self) -> str:
        return "".join(certificate for certificate, _ in self.pems.values())


def certified(sites: Sequence[Hosted], folder: Path) -> Certified:
    pems = {}
    for site in sites:
        files = self_signed(folder, [site.domain, f"www.{site.domain}"])
        pems[site.domain] = (files.certificate.read_text(), files.key.read_text())
    return Certified(pems)


# What PHP of every kind of site does: `connect.php` gives it the database.
_INDEX: Final = b"""<?php $db = require __DIR__ . '/connect.php';
[$title] = $db->query("SELECT title FROM pages WHERE id = 1")->fetch_row();
[$orders] = $db->query("SELECT count(*) FROM orders")->fetch_row();
echo "$title of $orders";
"""
_LOGIN: Final = b"""<?php $db = require __DIR__ . '/connect.php';
$asked = $db->prepare('SELECT hash FROM people WHERE name = ?');
$asked->bind_param('s', $_POST['name']);
$asked->execute();
$row = $asked->get_result()->fetch_row();
$right = $row && hash_equals($row[0], hash('sha256', $_POST['password']));
http_response_code($right ? 200 : 403);
echo $right ? 'welcome' : 'wrong';
"""
_UPLOAD: Final = b"""<?php $file = $_FILES['file'];
move_uploaded_file($file['tmp_name'], __DIR__ . '/%s/' . basename($file['name']));
"""


def dump(title: str, orders: int = 3) -> str:
    verifier = hashlib.sha256(PASSWORD.encode()).hexdigest()
    rows = ",".join(f"({number},'order {number}')" for number in range(1, orders + 1))
    return f"""-- MariaDB dump 10.19  Distrib 10.11.6-MariaDB, for debian-linux-gnu (x86_64)
CREATE TABLE `pages` (`id` int PRIMARY KEY, `title` varchar(99)) DEFAULT CHARSET=utf8mb4;
INSERT INTO `pages` VALUES (1,'{title}');
CREATE TABLE `people` (`name` varchar(99) PRIMARY KEY, `hash` char(64)) DEFAULT CHARSET=utf8mb4;
INSERT INTO `people` VALUES ('{LOGIN}','{verifier}');
CREATE TABLE `orders` (`id` int PRIMARY KEY, `what` text) DEFAULT CHARSET=utf8mb4;
INSERT INTO `orders` VALUES {rows};
-- Dump completed on 2026-01-02  3:04:05
"""


def _php(connect: bytes, uploads: str) -> dict[str, bytes]:
    return {
        "index.php": _INDEX,
        "login.php": _LOGIN,
        "upload.php": _UPLOAD % uploads.encode(),
        "connect.php": connect,
        f"{uploads}/bild.png": PIXEL,
    }


WORDPRESS_RULES: Final = b"""# BEGIN WordPress
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
"""


AKISMET: Final = b"""<IfModule !mod_authz_core.c>
Order Deny,Allow
Deny from all
</IfModule>
<IfModule mod_authz_core.c>
Require all denied
</IfModule>
<FilesMatch "^(form\\.js|akismet\\.css)$">
<IfModule !mod_authz_core.c>
Allow from all
</IfModule>
<IfModule mod_authz_core.c>
Require all granted
</IfModule>
</FilesMatch>
"""
"""As in the plugin that every WordPress comes with."""


def wordpress(domain: str, database: str, *, orders: int = 3, plugins: int = 20, **about: object) -> Hosted:
    configuration = f"""<?php
define('DB_NAME', '{database}');
define('DB_USER', '{database[:12]}');
define('DB_PASSWORD', 'old-Secret-1');
define('DB_HOST', 'localhost');
define('WPCACHEHOME', '@ROOT@/wp-content/plugins/plugin-1/');
$table_prefix = 'wp_';
"""
    connect = b"<?php require __DIR__ . '/wp-config.php'; return new mysqli(DB_HOST, DB_USER, DB_PASSWORD, DB_NAME);"
    files = {
        **_php(connect, "wp-content/uploads"),
        "wp-config.php": configuration.encode(),
        "wp-load.php": b"<?php\n",
        "wp-cron.php": b"<?php\n",
        ".htaccess": WORDPRESS_RULES,
        "wp-content/uploads/.htaccess": b"<Files *.php>\ndeny from all\n</Files>\n",
    }
    files["wp-content/plugins/akismet/.htaccess"] = AKISMET
    for number in range(1, plugins + 1):
        files[f"wp-content/plugins/plugin-{number}/plugin.php"] = b"<?php /* Plugin Name: One of twenty */"
        files[f"wp-content/plugins/plugin-{number}/index.php"] = b"<?php // Silence is golden."
    task = "*/15 * * * * cd @ROOT@ && /usr/local/bin/php -q wp-cron.php >/dev/null 2>&1"
    return Hosted(
        domain,
        Tree(files, {"bild.png": "wp-content/uploads/bild.png"}),
        f"{domain} of {orders}",
        database=database,
        dump=dump(domain, orders),
        tasks=(task,),
        uploads="wp-content/uploads",
        **about,  # type: ignore[arg-type]
    )


def joomla(domain: str, database: str, **about: object) -> Hosted:
    configuration = f"""<?php
class JConfig {{
\tpublic $sitename = 'Joomla';
\tpublic $host = 'localhost';
\tpublic $user = '{database[:12]}';
\tpublic $password = 'old-Secret-2';
\tpublic $db = '{database}';
\tpublic $log_path = '@ROOT@/administrator/logs';
\tpublic $tmp_path = '@ROOT@/tmp';
}}
"""
    connect = b"""<?php require __DIR__ . '/configuration.php'; $c = new JConfig;
is_dir($c->tmp_path) || exit('no temporary folder'); return new mysqli($c->host, $c->user, $c->password, $c->db);"""
    files = {
        **_php(connect, "images"),
        "configuration.php": configuration.encode(),
        "libraries/src/Version.php": b"<?php\n",
        "tmp/index.html": b"",
        "cli/finder_indexer.php": b"<?php\n",
    }
    task = f"30 2 * * mon-fri wget -q -O - https://{domain}/index.php?task=mails > /dev/null"
    return Hosted(
        domain,
        Tree(files),
        f"{domain} of 3",
        database=database,
        dump=dump(domain),
        tasks=(task,),
        uploads="images",
        **about,  # type: ignore[arg-type]
    )


def laravel(domain: str, database: str, application: str, **about: object) -> Hosted:
    environment = f"""APP_NAME="Portal"
APP_URL=https://{domain}
DB_CONNECTION=mysql
DB_HOST=127.0.0.1
DB_PORT=3306
DB_DATABASE={database}
DB_USERNAME={database[:12]}
DB_PASSWORD="old-Secret-3"
"""
    connect = b"""<?php require __DIR__ . '/../vendor/autoload.php'; $e = parse_ini_file(__DIR__ . '/../.env');
return new mysqli($e['DB_HOST'], $e['DB_USERNAME'], $e['DB_PASSWORD'], $e['DB_DATABASE']);"""
    rules = b"""<IfModule mod_rewrite.c>
    <IfModule mod_negotiation.c>
        Options -MultiViews -Indexes
    </IfModule>
    RewriteEngine On
    RewriteCond %{HTTP:Authorization} .
    RewriteRule .* - [E=HTTP_AUTHORIZATION:%{HTTP:Authorization}]
    RewriteCond %{REQUEST_FILENAME} !-d
    RewriteCond %{REQUEST_URI} (.+)/$
    RewriteRule ^ %1 [L,R=301]
    RewriteCond %{REQUEST_FILENAME} !-d
    RewriteCond %{REQUEST_FILENAME} !-f
    RewriteRule ^ index.php [L]
</IfModule>
"""
    files = {**_php(connect, "files"), ".htaccess": rules}
    beside = {
        "artisan": b"<?php\n",
        ".env": environment.encode(),
        "vendor/autoload.php": b"<?php\n",
        "composer.json": b"{}",
        "storage/app/public/a.png": PIXEL,
    }
    return Hosted(
        domain,
        Tree(files, {"storage": "../storage/app/public"}),
        f"{domain} of 3",
        application=application,
        beside=beside,
        database=database,
        dump=dump(domain),
        tasks=("* * * * * cd @ROOT@/.. && php artisan schedule:run >> /dev/null 2>&1",),
        uploads="files",
        **about,  # type: ignore[arg-type]
    )


def static(domain: str, *, rules: bytes | None = None, closed: bool = False, **about: object) -> Hosted:
    files = {"index.html": f"<h1>{domain}</h1>".encode(), "css/style.css": b"body { color: red }"}
    if rules is not None:
        files[".htaccess"] = rules
    return Hosted(domain, Tree(files), f"<h1>{domain}</h1>", closed=closed, **about)  # type: ignore[arg-type]


def single_page(domain: str, **about: object) -> Hosted:
    """As Vite builds it, with the rules by which every address is the application's."""
    rules = b"""<IfModule mod_rewrite.c>
  RewriteEngine On
  RewriteBase /
  RewriteRule ^index\\.html$ - [L]
  RewriteCond %{REQUEST_FILENAME} !-f
  RewriteCond %{REQUEST_FILENAME} !-d
  RewriteRule . /index.html [L]
</IfModule>
"""
    page = f'<script type="module" src="/assets/index-4f5e.js"></script><title>{domain}</title>'
    files = {"index.html": page.encode(), "assets/index-4f5e.js": b"export {}", ".htaccess": rules}
    return Hosted(domain, Tree(files), f"<title>{domain}</title>", **about)  # type: ignore[arg-type]


def six(top: str) -> list[Hosted]:
    """One of each kind. `top` is the account's first domain."""
    name = top.partition(".")[0]
    return [
        wordpress(top, f"{USER}_wp", parked=(f"{name}-parked.example",)),
        wordpress(f"{name}-shop.example", f"{USER}_shop", orders=400),
        joomla(f"{name}-verein.example", f"{USER}_joom1"),
        laravel(f"portal.{top}", f"{USER}_portal", "portal", label="portal"),
        static(
            f"{name}-praxis.example",
            rules=b"Redirect 301 /alt.html /\nErrorDocument 404 /404.html\nHeader set X-Frame-Options SAMEORIGIN\n",
        ),
        static(f"intern.{top}", label="intern", rules=b"Require ip 192.0.2.0/24\n", closed=True),
    ]


def zone(domain: str, subdomains: Sequence[str] = ()) -> str:
    """As cPanel writes it: the services of mail are aliases of the domain."""
    text = "".join(f'"{DKIM[start : start + 255]}" ' for start in range(0, len(DKIM), 255))
    own = "".join(f"{label}\t14400\tIN\tA\t{OLD}\nwww.{label}\t14400\tIN\tA\t{OLD}\n" for label in subdomains)
    return f"""$TTL 14400
{domain}. 86400 IN SOA ns1.old.example. root.old.example. (2026010101 3600 1800 1209600 86400)
{domain}. 86400 IN NS ns1.old.example.
{domain}. IN A {OLD}
{domain}. IN MX 0 {domain}.
mail IN CNAME {domain}.
www IN CNAME {domain}.
ftp IN CNAME {domain}.
cpanel IN A {OLD}
webmail IN A {OLD}
{domain}. IN TXT "v=spf1 +a +mx +ip4:{OLD} ~all"
default._domainkey IN TXT {text}
_dmarc IN TXT "v=DMARC1; p=none"
{own}"""


CRON: Final = f"""MAILTO="{USER}@old.example"
SHELL="/bin/bash"
PATH=/opt/node/bin:/usr/bin
0 3 * * * mysqldump {USER}_wp | gzip > /home/{USER}/backup.gz
5 4 31 2 * php @ROOT@/index.php
"""


def _roots(sites: Sequence[Hosted]) -> Iterator[tuple[Hosted, str]]:
    """Each site with its document root below the home of cPanel."""
    for number, site in enumerate(sites):
        if site.application is not None:
            yield site, f"{site.application}/public"
        elif number == 0:
            yield site, "public_html"
        else:
            yield site, site.domain if site.label is None else f"public_html/{site.label}"


def _placed(packed: Packer, folder: str, site: Hosted, root: str) -> None:
    """The site's files below `folder` of the archive, whose name on the old host ends the same."""
    packed.folder(folder, 0o750)
    old = {ROOT: root.encode()}
    for files, above in ((site.tree.files, folder), (site.beside, folder.rpartition("/")[0])):
        for name, content in files.items():
            for mark, value in old.items():
                content = content.replace(mark, value)
            packed.file(f"{above}/{name}", content, 0o600 if name.endswith((".php", ".env")) else 0o640)
    for name, target in site.tree.links.items():
        packed.link(f"{folder}/{name}", target)


def cpanel(sites: Sequence[Hosted], certificates: Certified, *, more_tasks: str = CRON) -> bytes:
    packed, home = Packer(), f"/home/{USER}"
    first, top = sites[0], "cpmove-agency/"
    addons = [site for site in sites[1:] if site.label is None]
    subs = [site for site in sites if site.label is not None]
    packed.file(f"{top}cp/{USER}", f"DNS={first.domain}\nUSER={USER}\nPLAN=reseller\n")
    internal = {site.domain: f"{site.domain.partition('.')[0]}.{first.domain}" for site in addons}
    packed.file(
        f"{top}userdata/main",
        "---\naddon_domains:\n"
        + "".join(f"  {domain}: {name}\n" for domain, name in internal.items())
        + f"main_domain: {first.domain}\nparked_domains:\n"
        + "".join(f"  - {name}\n" for name in first.parked)
        + "sub_domains:\n"
        + "".join(f"  - {name}\n" for name in (*internal.values(), *(site.domain for site in subs))),
    )
    tasks = more_tasks.replace("@ROOT@", f"{home}/public_html")
    packed.folder(f"{top}homedir", 0o711)
    grants = ""
    for site, root in _roots(sites):
        described = internal.get(site.domain, site.domain)
        aliases = (
            f"www.{site.domain}" if site is first or site.label else f"www.{site.domain} {site.domain} www.{described}"
        )
        packed.file(
            f"{top}userdata/{described}",
            f"---\ndocumentroot: {home}/{root}\nhomedir: {home}\nphpversion: ea-php82\n"
            f"serveralias: {aliases}{f' mail.{site.domain}' if site.label is None else ''}\nservername: {described}\n",
        )
        _placed(packed, f"{top}homedir/{root}", site, f"{home}/{root}")
        tasks += "".join(f"{line}\n".replace("@ROOT@", f"{home}/{root}") for line in site.tasks)
        certificate, key = certificates.pems[site.domain]
        packed.file(f"{top}apache_tls/{site.domain}", key + certificate, 0o640)
        if site.database is not None:
            packed.file(f"{top}mysql/{site.database}.create", f"CREATE DATABASE `{site.database}`;")
            packed.file(f"{top}mysql/{site.database}.sql", site.dump)
            named = site.database.replace("_", "\\_")
            grants += f"GRANT ALL PRIVILEGES ON `{named}`.* TO '{site.database[:12]}'@'localhost';\n"
    packed.file(f"{top}mysql.sql", grants)
    for site in (first, *addons):
        labels = [each.label for each in subs if each.label] if site is first else []
        packed.file(f"{top}dnszones/{site.domain}.db", zone(site.domain, labels))
        packed.file(f"{top}va/{site.domain}", "*: agency")
        packed.file(f"{top}homedir/mail/{site.domain}/info/cur/1", "From: x")
    for name in first.parked:
        packed.file(f"{top}dnszones/{name}.db", zone(name))
    packed.file(f"{top}cron/{USER}", tasks)
    packed.file(f"{top}proftpdpasswd", f"{USER}_ftp:x:1000:1000::{home}:/bin/ftpsh\n")
    packed.link(f"{top}homedir/access-logs", f"/etc/apache2/logs/domlogs/{USER}")
    packed.link(f"{top}homedir/www", "public_html")
    return packed.gzipped()


def directadmin(sites: Sequence[Hosted], certificates: Certified, *, more_tasks: str = CRON) -> bytes:
    packed, first = Packer(), sites[0]
    subs = [site for site in sites if site.label is not None]
    packed.file("backup/user.conf", f"username={USER}\ndomain={first.domain}\nusertype=user\nphp=ON\n")
    tasks = more_tasks.replace("@ROOT@", f"/home/{USER}/domains/{first.domain}/public_html")
    for site in sites:
        above = f"domains/{first.domain if site.label else site.domain}"
        if site.application is not None:
            root = f"{above}/{site.application}/public"
        else:
            root = f"{above}/public_html{f'/{site.label}' if site.label else ''}"
        old = f"/home/{USER}/{root}"
        _placed(packed, root, site, old)
        tasks += "".join(f"{line}\n".replace("@ROOT@", old) for line in site.tasks)
        if site.database is not None:
            packed.file(f"backup/{site.database}.sql", site.dump)
            packed.file(f"backup/{site.database}.conf", f"{site.database[:12]}=alter_priv=Y&passwd=%2A5B\n")
        if site.label is not None:
            continue
        about = f"backup/{site.domain}"
        own = subs if site is first else []
        packed.file(f"{about}/domain.conf", f"domain={site.domain}\nusername={USER}\nphp=ON\nphp1_select=1\nssl=ON\n")
        packed.file(f"{about}/subdomain.list", "".join(f"{each.label}\n" for each in own))
        packed.file(
            f"{about}/domain.subdomains.docroot.override",
            "".join(
                f"{each.label}=public_html=%2Fdomains%2F{first.domain}%2F{each.application}%2Fpublic\n"
                for each in own
                if each.application is not None
            ),
        )
        packed.file(f"{about}/domain.pointers", "".join(f"{name}=alias\n" for name in site.parked))
        packed.file(f"{about}/ftp.passwd", f"info@{site.domain}=passwd=x&path=/\n")
        packed.file(f"{about}/email/passwd", "info:$6$x\n")
        packed.file(f"{about}/{site.domain}.db", zone(site.domain, [each.label for each in own if each.label]))
        for name in site.parked:
            packed.file(f"{about}/{name}.db", zone(name))
        certificate, key = certificates.pems[site.domain]
        packed.file(f"{about}/domain.cert", certificate)
        packed.file(f"{about}/domain.key", key)
        packed.link(f"{above}/private_html", "./public_html")
    packed.file("backup/crontab.conf", tasks)
    return packed.gzipped()
