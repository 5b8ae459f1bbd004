"""One model site as other hosts pack it: cPanel, Plesk, DirectAdmin, Hestia, Virtualmin, and by hand."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MAIN: Final = "shop.example"
ADDON: Final = "blog-of-ada.example"
USER: Final = "ada"
DATABASE: Final = "ada_wp_shop"
"""With underscores, of which a format's own tools make dots."""
PASSWORD: Final = 'it\'s "secret"; $x'
"""Of its user, as the configuration has it."""
PHP_CONFIGURATION: Final = """<?php
define('DB_NAME', '{database}');
define( "DB_USER", "ada_wp" );
define('DB_PASSWORD', 'it\\'s "secret"; $x');
define('DB_HOST', 'localhost');
define('WPCACHEHOME', '{home}/wp-content/plugins/cache/');
$table_prefix = 'wp_';
"""
DUMP: Final = """-- MariaDB dump 10.19  Distrib 10.11.6-MariaDB, for debian-linux-gnu (x86_64)
CREATE TABLE `wp_options` (`option_id` bigint PRIMARY KEY, `option_name` varchar(191), `option_value` longtext)
  DEFAULT CHARSET=utf8mb4;
INSERT INTO `wp_options` VALUES (1,'siteurl','https://shop.example'),
 (2,'widgets','a:1:{s:5:"title";s:18:"Größe – 日本";}');
-- Dump completed on 2026-01-02  3:04:05
"""
ZONE: Final = """$TTL 14400
@ 86400 IN SOA ns1.old.example. root.old.example. ( 2026010101 3600 1800
    1209600 86400 )
@ 86400 IN NS ns1.old.example.
@ IN A 198.51.100.7
www IN CNAME shop.example.
mail IN A 198.51.100.7
@ IN MX 10 mail.shop.example.
@ IN TXT "v=spf1 +a +mx ~all"
default._domainkey IN TXT ( "v=DKIM1; k=rsa; p=MIIB" "IjANBg" )
_sip._tcp IN SRV 10 20 5060 sip.shop.example.
@ IN CAA 0 issue "letsencrypt.org"
"""
CRON: Final = """MAILTO=ada@shop.example
*/15 * * * * /usr/local/bin/php -q /home/ada/public_html/cron.php --all >/dev/null 2>&1
@daily wget -q -O /dev/null "https://shop.example/tasks?key=1"
0 3 * * * mysqldump ada | gzip > /home/ada/x.gz
"""


NOTHING: Final[Mapping[str, bytes]] = {}
NO_LINKS: Final[Mapping[str, str]] = {}
ASKING: Final = b"""<?php
define('ABSPATH', __DIR__ . '/');
require __DIR__ . '/wp-config.php';
$asked = mysqli_connect(DB_HOST, DB_USER, DB_PASSWORD, DB_NAME);
mysqli_set_charset($asked, 'utf8mb4');
$row = mysqli_fetch_row(mysqli_query($asked, "SELECT option_value FROM wp_options WHERE option_name = 'widgets'"));
echo unserialize($row[0])['title'];
"""
"""A page that is made of the database."""


@dataclass
class Tree:
    """Files and links beneath a document root."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


def model(more_files: int = 20, *, home: str = "/home/ada/public_html") -> dict[str, Tree]:
    """The site and its addon domain, by their domains."""
    configuration = PHP_CONFIGURATION.format(database=DATABASE, home=home).encode()
    shop = Tree(
        {
            "index.php": b"<?php require __DIR__ . '/wp-load.php'; echo 'shop of Ada: ' . count(glob('many/*'));",
            "wp-load.php": b"<?php\n",
            "wp-config.php": configuration,
            "cron.php": b"<?php file_put_contents('ran', '1');",
            "Größe/日本.html": "<p>Größe – 日本</p>".encode(),
            "INDEX.html": b"upper",
            "wp-content/uploads/bild_1.png": bytes(range(256)) * 20,
            **{f"many/{number // 50}/{number}.txt": f"file {number}\n".encode() for number in range(more_files)},
        },
        {"latest": "wp-content/uploads", "wp-content/uploads/up.png": "bild_1.png"},
    )
    blog = Tree({"index.html": b"<h1>blog of Ada</h1>", "css/style.css": b"body { color: red }"})
    return {MAIN: shop, ADDON: blog}


class Packer:
    """A tar archive as it is written."""

    def __init__(self) -> None:
        self._content = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._content, mode="w", format=tarfile.GNU_FORMAT)

    def file(self, name: str, content: bytes | str, mode: int = 0o644) -> None:
        data = content.encode() if isinstance(content, str) else content
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = len(data), mode, 1_700_000_000
        self._tar.addfile(info, io.BytesIO(data))

    def folder(self, name: str, mode: int = 0o755) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(info)

    def link(self, name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        self._tar.addfile(info)

    def tree(self, above: str, tree: Tree) -> None:
        self.folder(above, 0o750)
        for name, content in tree.files.items():
            self.file(f"{above}/{name}", content, 0o600 if name.endswith(".php") else 0o640)
        for name, target in tree.links.items():
            self.link(f"{above}/{name}", target)

    def files(self, above: str, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            self.file(f"{above}/{name}", content, 0o640)

    def whole(self) -> bytes:
        self._tar.close()
        return self._content.getvalue()

    def gzipped(self) -> bytes:
        return gzip.compress(self.whole(), 1, mtime=0)


def cpanel(
    sites: Mapping[str, Tree],
    *,
    certificate: str | None = None,
    above: str = "cpmove-ada/",
    home: Mapping[str, bytes] = NOTHING,
    links: Mapping[str, str] = NO_LINKS,
    zone: str = ZONE,
) -> bytes:
    """`home`: more files of the account's, `links`: more links of it."""
    packed = Packer()
    packed.files(f"{above}homedir", home)
    for name, target in links.items():
        packed.link(f"{above}homedir/{name}", target)
    packed.file(f"{above}cp/{USER}", f"DNS={MAIN}\nUSER={USER}\nPLAN=default\n")
    packed.file(
        f"{above}userdata/main",
        f"---\naddon_domains:\n  {ADDON}: addon.{MAIN}\nmain_domain: {MAIN}\nparked_domains:\n"
        f"  - parked-{MAIN}\nsub_domains:\n  - addon.{MAIN}\n",
    )
    packed.file(
        f"{above}userdata/{MAIN}",
        f"---\ndocumentroot: /home/{USER}/public_html\nhomedir: /home/{USER}\nphpversion: ea-php82\n"
        f"serveralias: mail.{MAIN} www.{MAIN}\nservername: {MAIN}\n",
    )
    packed.file(
        f"{above}userdata/addon.{MAIN}",
        f"---\ndocumentroot: /home/{USER}/public_html/addon\nhomedir: /home/{USER}\n"
        f"serveralias: www.{ADDON} {ADDON} www.addon.{MAIN}\nservername: addon.{MAIN}\n",
    )
    packed.folder(f"{above}homedir", 0o711)
    packed.tree(f"{above}homedir/public_html", sites[MAIN])
    packed.tree(f"{above}homedir/public_html/addon", sites[ADDON])
    packed.link(f"{above}homedir/access-logs", f"/etc/apache2/logs/domlogs/{USER}")
    packed.link(f"{above}homedir/www", "public_html")
    packed.link(f"{above}homedir/public_html/absolute.png", f"/home/{USER}/public_html/wp-content/uploads/bild_1.png")
    packed.link(f"{above}homedir/public_html/passwd", "/etc/passwd")
    packed.file(f"{above}homedir/vendor/autoload.php", "<?php")
    packed.file(f"{above}homedir/mail/{MAIN}/ada/cur/1", "From: x")
    packed.file(f"{above}mysql/{DATABASE}.create", f"CREATE DATABASE `{DATABASE}`;")
    packed.file(f"{above}mysql/{DATABASE}.sql", DUMP)
    packed.file(
        f"{above}mysql.sql",
        f"GRANT USAGE ON *.* TO 'ada_wp'@'localhost' IDENTIFIED BY PASSWORD '*AB';\n"
        f"GRANT ALL PRIVILEGES ON `{DATABASE.replace('_', chr(92) + '_')}`.* TO 'ada_wp'@'localhost';\n"
        f"GRANT SELECT, SHOW VIEW ON `{DATABASE.replace('_', chr(92) + '_')}`.* TO 'ada_ro'@'203.0.113.7';\n"
        f"GRANT SELECT, INSERT ON `{DATABASE}`.* TO `ada_form`@`localhost`;\n",
    )
    packed.file(f"{above}dnszones/{MAIN}.db", zone)
    packed.file(f"{above}cron/{USER}", CRON)
    packed.file(f"{above}va/{MAIN}", "*: ada")
    packed.file(f"{above}vf/{MAIN}", "")
    packed.file(f"{above}proftpdpasswd", f"{USER}_ftp:x:1000:1000::/home/{USER}:/bin/ftpsh\n")
    if certificate is not None:
        packed.file(f"{above}apache_tls/{MAIN}", certificate, 0o640)
    return packed.gzipped()


def hestia(
    sites: Mapping[str, Tree], *, certificate: tuple[str, str] | None = None, home: Mapping[str, bytes] = NOTHING
) -> bytes:
    packed = Packer()
    packed.file("./hestia/user.conf", f"NAME='Ada'\nCONTACT='ada@{MAIN}'\n")
    for domain, tree in sites.items():
        inner = Packer()
        inner.tree("public_html", tree)
        inner.folder("private")
        inner.files(".", home if domain == MAIN else NOTHING)
        packed.file(
            f"./web/{domain}/hestia/web.conf",
            f"DOMAIN='{domain}' IP='198.51.100.7' ALIAS='www.{domain}' BACKEND='PHP-8_2' SSL='no' USER='{USER}'\n",
        )
        packed.file(f"./web/{domain}/domain_data.tar.gz", inner.gzipped())
    if certificate is not None:
        packed.file(f"./web/{MAIN}/conf/{MAIN}.crt", certificate[0])
        packed.file(f"./web/{MAIN}/conf/{MAIN}.key", certificate[1])
    packed.file(f"./dns/{MAIN}/conf/{MAIN}.db", ZONE)
    packed.file(f"./db/{DATABASE}/hestia/db.conf", f"DB='{DATABASE}' DBUSER='ada_wp' TYPE='mysql'\n")
    packed.file(f"./db/{DATABASE}/{DATABASE}.mysql.sql.gz", gzip.compress(DUMP.encode(), mtime=0))
    packed.file(
        "./cron/cron.conf",
        "JOB='1' MIN='*/15' HOUR='*' DAY='*' MONTH='*' WDAY='*' "
        f"CMD='php /home/{USER}/web/{MAIN}/public_html/cron.php --all' SUSPENDED='no'\n",
    )
    packed.file(f"./mail/{MAIN}/hestia/mail.conf", f"DOMAIN='{MAIN}'")
    return packed.whole()


def directadmin(
    sites: Mapping[str, Tree], *, certificate: tuple[str, str] | None = None, home: Mapping[str, bytes] = NOTHING
) -> bytes:
    """As DirectAdmin 1.709 lays it out; `home`: files of the home next to public_html."""
    packed, rest = Packer(), Packer()
    rest.file("./.bashrc", "")
    rest.file("./Maildir/new/1", "From: x")
    rest.file("./private-fixtures/orders.csv", "1")
    packed.file(
        "backup/user.conf",
        f"account=ON\nusername={USER}\ndomain={MAIN}\nemail={USER}@{MAIN}\nusertype=user\nphp=ON\n",
    )
    packed.file("backup/backup_options.list", "database\ndomain\nemail\n")
    packed.file("backup/.shadow", "$6$x")
    tasks = (f"{number}={line}\n" for number, line in enumerate(CRON.splitlines()[1:], start=1))
    packed.file(
        "backup/crontab.conf",
        f"MAILTO={USER}@{MAIN}\n{''.join(tasks)}".replace(
            "/home/ada/public_html", f"/home/ada/domains/{MAIN}/public_html"
        ),
    )
    packed.file(f"backup/{DATABASE}.sql", DUMP)
    packed.file(
        f"backup/{DATABASE}.conf",
        "accesshosts=0=localhost\ndb_collation=CATALOG_NAME=def&DEFAULT_CHARACTER_SET_NAME=utf8mb4\n"
        "ada_wp=alter_priv=Y&passwd=%2A5B1E5F0E&plugin=mysql_native_password&select_priv=Y\n",
    )
    packed.file("backup/home.tar.gz", rest.gzipped())
    for domain, tree in sites.items():
        about = f"backup/{domain}"
        packed.file(f"{about}/domain.conf", f"domain={domain}\nusername={USER}\nphp=ON\nphp1_select=1\nssl=ON\n")
        packed.file(f"{about}/domain.usage", "bandwidth=0\n")
        packed.file(f"{about}/subdomain.list", "dev\n" if domain == MAIN else "")
        packed.file(f"{about}/domain.pointers", f"parked-{MAIN}=alias\n" if domain == MAIN else "")
        packed.file(
            f"{about}/ftp.passwd", f"{USER}=passwd=x&path=/home/{USER}&type=system\nbob@{domain}=passwd=x&path=/\n"
        )
        packed.file(f"{about}/email/passwd", "sales:$6$x\n" if domain == MAIN else "")
        packed.file(f"{about}/email/aliases", f"{USER}:{USER}\ninfo:ada@elsewhere.example\n")
        packed.file(f"{about}/email/autoresponder.conf", "")
        packed.tree(f"domains/{domain}/public_html", tree)
        packed.link(f"domains/{domain}/private_html", "./public_html")
        packed.file(f"domains/{domain}/stats/index.html", "stats")
        packed.file(f"domains/{domain}/logs/Jan-2026.tar.gz", "x")
    packed.file(f"domains/{MAIN}/public_html/dev/index.html", "<h1>dev</h1>")
    packed.files(f"domains/{MAIN}", home)
    packed.file(f"backup/{MAIN}/{MAIN}.db", ZONE)
    packed.file(f"imap/{MAIN}/sales/Maildir/new/1", "From: x")
    if certificate is not None:
        packed.file(f"backup/{MAIN}/domain.cert", certificate[0])
        packed.file(f"backup/{MAIN}/domain.key", certificate[1])
    return packed.gzipped()


def virtualmin(
    sites: Mapping[str, Tree], *, certificate: tuple[str, str] | None = None, home: Mapping[str, bytes] = NOTHING
) -> bytes:
    packed = Packer()
    packed.files(".", home)
    packed.tree("./public_html", sites[MAIN])
    packed.tree(f"./domains/{ADDON}/public_html", sites[ADDON])
    packed.file("./Maildir/cur/1", "From: x")
    for domain, old_home in ((MAIN, f"/home/{USER}"), (ADDON, f"/home/{USER}/domains/{ADDON}")):
        packed.file(
            f"./.backup/{domain}_virtualmin", f"dom={domain}\nuser={USER}\nhome={old_home}\nphp_fpm_version=8.2\n"
        )
        packed.file(
            f"./.backup/{domain}_web",
            f"<VirtualHost 198.51.100.7:80>\nServerName {domain}\nServerAlias www.{domain} mail.{domain}\n"
            f"DocumentRoot {old_home}/public_html\n</VirtualHost>\n",
        )
    packed.file(f"./.backup/{MAIN}_dns", ZONE)
    packed.file(f"./.backup/{MAIN}_cron", CRON)
    packed.file(f"./.backup/{MAIN}_mysql_{DATABASE}.gz", gzip.compress(DUMP.encode(), mtime=0))
    packed.file(f"./.backup/{MAIN}_mail", "")
    if certificate is not None:
        packed.file(f"./.backup/{MAIN}_ssl_cert", certificate[0])
        packed.file(f"./.backup/{MAIN}_ssl_key", certificate[1])
    return packed.gzipped()


def plesk(sites: Mapping[str, Tree], *, home: Mapping[str, bytes] = NOTHING) -> bytes:
    packed, contents = Packer(), Packer()
    contents.files(".", home)
    contents.tree("httpdocs", sites[MAIN])
    contents.tree(ADDON, sites[ADDON])
    dump = Packer()
    dump.file(f"backup_{DATABASE}_mysql_2601010101", DUMP)
    zone = "".join(
        f'<dnsrec type="{kind}" src="{source}" dst="{target}" opt="{option}"/>'
        for kind, source, target, option in (
            ("A", f"{MAIN}.", "198.51.100.7", ""),
            ("A", f"mail.{MAIN}.", "198.51.100.7", ""),
            ("MX", f"{MAIN}.", f"mail.{MAIN}.", "10"),
            ("NS", f"{MAIN}.", "ns1.old.example.", ""),
            ("TXT", f"{MAIN}.", "v=spf1 +a +mx ~all", ""),
        )
    )

    def content(kind: str, name: str) -> str:
        return f'<content><cid type="{kind}" path=""><content-file size="1">{name}</content-file></cid></content>'

    packed.file(
        "backup_info_2601010101.xml",
        f"""<?xml version="1.0" encoding="UTF-8"?>
<migration-dump content-included="true" agent-name="PleskX" dump-format="panel" dump-version="18.0.60">
<domain name="{MAIN}" www="true"><properties><dns-zone>{zone}</dns-zone></properties>
<databases><database name="{DATABASE}" type="mysql" version="10.6">{content("sqldump", "backup_sqldump_1.tgz")}
<dbuser name="ada_wp"/></database></databases>
<mailsystem><mailusers><mailuser name="ada"/></mailusers></mailsystem>
<certificates><certificate name="own"/></certificates>
<phosting www-root="httpdocs">{content("user-data", "backup_user-data_1.tgz")}
<preferences><sysuser name="{USER}"/></preferences><limits-and-permissions><scripting php="true"/>
</limits-and-permissions><php php-handler-id="plesk-php82-fpm"/>
<sites><site name="{ADDON}"><phosting www-root="{ADDON}"/></site></sites></phosting>
</domain></migration-dump>
""",
    )
    packed.file("backup_user-data_1.tgz", contents.gzipped())
    packed.file("backup_sqldump_1.tgz", dump.gzipped())
    return packed.whole()


def by_hand(sites: Mapping[str, Tree]) -> bytes:
    packed = Packer()
    packed.tree(f"{MAIN}/htdocs", sites[MAIN])
    packed.file(f"{MAIN}/dump.sql.gz", gzip.compress(DUMP.encode(), mtime=0))
    return packed.gzipped()
