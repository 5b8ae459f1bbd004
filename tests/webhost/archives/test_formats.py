"""What is read of the archives of other hosts: pure functions over names and small files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc_webhost.archives import cpmove, reading, tree
from svc_webhost.archives.applications import database_of, rewritten
from svc_webhost.archives.crontab import NoTaskError, read_crontab, typed
from svc_webhost.archives.model import FoundSite, FoundTask, Kind, Survey, account_of
from svc_webhost.archives.placing import link_target, placed_at
from svc_webhost.archives.zonefile import read_zone
from svc_webhost.confined.survey import survey
from tests.support.foreign_archives import Packer

SITE = FoundSite(
    "shop.example",
    "homedir/public_html",
    ["www.shop.example"],
    without=["homedir/public_html/addon"],
    home=["homedir/vendor", "homedir/tmp", "homedir/private"],
    old_home="/home/ada",
    home_in_archive="homedir",
)


@pytest.mark.parametrize(
    ("path", "placed"),
    [
        ("homedir/public_html", "public"),
        ("homedir/public_html/a/b.php", "public/a/b.php"),
        ("homedir/public_html/addon/x", None),
        ("homedir/public_html2/x", None),
        ("homedir/vendor/autoload.php", "vendor/autoload.php"),
        ("homedir/tmp/x", "private/tmp/x"),
        ("homedir/private/x", "private/x"),
        ("homedir/private/.svc-import", None),
        ("homedir/private/.svc-import/files/public/x", None),
        ("homedir/mail/x", None),
    ],
)
def test_what_an_archive_holds_has_one_place_in_its_site(path: str, placed: str | None) -> None:
    assert placed_at(SITE, path) == placed


@pytest.mark.parametrize(
    ("target", "new"),
    [
        ("a/b.png", "a/b.png"),
        ("../../vendor/x", "../../vendor/x"),
        ("/home/ada/public_html/a/b.png", "../a/b.png"),
        ("/home/ada/vendor/x", "../../vendor/x"),
        ("/home/adam/x", None),
        ("/etc/passwd", None),
        ("../../../etc/passwd", None),
        ("../../mail/x", None),
        ("../addon/x", None),
    ],
)
def test_a_link_leads_to_what_it_led_to_or_nowhere(target: str, new: str | None) -> None:
    assert link_target(SITE, "homedir/public_html/deep/link", target) == new


@pytest.mark.parametrize(
    ("command", "kind", "path", "args"),
    [
        ("/usr/bin/php /home/ada/public_html/cron.php", "php", "public/cron.php", ()),
        (
            "/usr/local/bin/ea-php81 -q /home/ada/public_html/a.php x 'y z' >/dev/null 2>&1",
            "php",
            "public/a.php",
            ("x", "y z"),
        ),
        ("cd /home/ada/public_html && php cron.php", "php", "public/cron.php", ()),
        ("php ~/vendor/run.php", "php", "vendor/run.php", ()),
        ("curl -s https://www.shop.example/cron?x=1", "url", "/cron?x=1", ()),
        ("/usr/bin/python3 /home/ada/public_html/t.py", "python", "public/t.py", ()),
    ],
)
def test_a_line_of_a_crontab_becomes_a_typed_task(command: str, kind: str, path: str, args: tuple[str, ...]) -> None:
    task = typed(FoundTask("*/5 * * * *", command), [SITE])

    assert (task.domain, task.kind, task.path, task.args) == ("shop.example", kind, path, args)


@pytest.mark.parametrize(
    "command",
    [
        "mysqldump a | gzip > b",
        "php /etc/x.php",
        "php -d x=1 /home/ada/public_html/a.php",
        "php /home/ada/public_html/addon/a.php",
        "curl https://elsewhere.example/",
        "php $HOME/x.php; rm -rf /",
        "php `id`",
        "/home/ada/run.sh",
        "",
    ],
)
def test_what_is_no_typed_task_is_left_out_with_a_reason(command: str) -> None:
    with pytest.raises(NoTaskError, match=r".+"):
        typed(FoundTask("*/5 * * * *", command), [SITE])


def test_a_crontab_is_read_with_its_macros_and_without_its_variables() -> None:
    read = list(read_crontab("MAILTO=a\n# x\n@hourly php a\n1 2 3 4 5 php b c\nnonsense\n"))

    assert read == [FoundTask("0 * * * *", "php a"), FoundTask("1 2 3 4 5", "php b c"), FoundTask("", "nonsense")]


def test_wp_config_gets_the_new_database_and_stays_as_it_is_otherwise() -> None:
    text = b"""<?php
define('DB_NAME', 'old_db');
define( "DB_USER" , "o\\"x" );
define('DB_PASSWORD', 'a\\'b);');
define('DB_HOST', 'localhost:3306');
define('WPCACHEHOME', '/home/ada/public_html/wp-content/');
$x = '/home/ada/public_html2/';
"""
    new = rewritten(
        text,
        {"DB_NAME": "s1_wordpress", "DB_USER": "u", "DB_PASSWORD": "p'\\", "DB_HOST": "h"},
        {"/home/ada/public_html": "/srv/s1/public"},
    )

    assert database_of(text) == "old_db"
    assert (
        new
        == b"""<?php
define('DB_NAME', 's1_wordpress');
define( "DB_USER" , 'u' );
define('DB_PASSWORD', 'p\\'\\\\');
define('DB_HOST', 'h');
define('WPCACHEHOME', '/srv/s1/public/wp-content/');
$x = '/home/ada/public_html2/';
"""
    )


def test_a_wp_config_that_reads_its_database_elsewhere_is_told() -> None:
    with pytest.raises(ValueError, match="DB_NAME"):
        rewritten(b"<?php define('DB_NAME', getenv('X'));", {"DB_NAME": "x"}, {})


@pytest.mark.parametrize(
    ("file", "text", "new"),
    [
        (
            "configuration.php",
            b"<?php class JConfig { public $host = 'localhost'; public $user = 'ada_j'; public $password = 'a\\'b;';\n"
            b"public $db = 'ada_joomla'; public $dbprefix = 'x_'; public $tmp_path = '/home/ada/j/tmp'; }",
            b"<?php class JConfig { public $host = 'h'; public $user = 'u'; public $password = 'p';\n"
            b"public $db = 'n'; public $dbprefix = 'x_'; public $tmp_path = '/srv/s1/public/tmp'; }",
        ),
        (
            "LocalSettings.php",
            b'$wgDBserver = "localhost";\n$wgDBname = "ada_joomla";\n$wgDBuser = "a";\n$wgDBpassword = "b";\n',
            b"$wgDBserver = 'h';\n$wgDBname = 'n';\n$wgDBuser = 'u';\n$wgDBpassword = 'p';\n",
        ),
        (
            ".env",
            b'APP_KEY=x\r\nDB_HOST=127.0.0.1\r\nDB_DATABASE=ada_joomla\nDB_USERNAME="a"\nDB_PASSWORD= # none\n'
            b"LOG=/home/ada/j\n",
            b"APP_KEY=x\r\nDB_HOST=h\r\nDB_DATABASE=n\nDB_USERNAME=u\nDB_PASSWORD=p\nLOG=/srv/s1/public\n",
        ),
    ],
)
def test_configurations_of_other_products_get_the_new_database(file: str, text: bytes, new: bytes) -> None:
    values = {"DB_NAME": "n", "DB_USER": "u", "DB_PASSWORD": "p", "DB_HOST": "h"}

    assert database_of(text, file) == "ada_joomla"
    assert rewritten(text, values, {"/home/ada/j": "/srv/s1/public"}, file) == new


@pytest.mark.parametrize("line", ["DB_URL=mysql://a:b@localhost/c", "DATABASE_URL='mysql://x'", "DB_CONNECTION=pgsql"])
def test_an_environment_that_says_its_database_otherwise_is_left_as_it_is(line: str) -> None:
    assert database_of(f"{line}\nDB_DATABASE=ada_joomla\n".encode(), ".env") is None


def test_a_site_within_another_sites_product_keeps_no_uploads_of_it(tmp_path: Path) -> None:
    packed = Packer()
    packed.file("cp/ada", "DNS=shop.example\n")
    packed.file("userdata/main", "main_domain: shop.example\nsub_domains:\n  - in.shop.example\n")
    packed.file("userdata/in.shop.example", "documentroot: /home/ada/public_html/in\n")
    variables = 'MAILTO="ada@shop.example"\nSHELL="/bin/bash"\nPATH=/opt/bin\n'
    packed.file("cron/ada", f"{variables}@daily php public_html/x.php\n")
    for name in ("wp-load.php", "x.php", "in/index.html"):
        packed.file(f"homedir/public_html/{name}", "x")

    (tmp_path / "archive").write_bytes(packed.whole())
    with (tmp_path / "archive").open("rb") as archive:
        account = survey(archive)

    assert [list(site.uploads) for site in account.sites] == [["/wp-content/uploads"], []]
    named = [left.name for left in account.left if left.kind is Kind.TASK]
    assert named == ["MAILTO=ada@shop.example", "PATH=/opt/bin"]
    assert [typed(task, account.sites).path for task in account.tasks] == ["public/x.php"]


def test_a_zone_file_is_read_into_logical_records() -> None:
    zone = read_zone(
        "a.example",
        "$TTL 1h\n@ IN SOA ns. root. ( 1 2\n 3 4 5 )\n  IN NS ns1.old.example.\n@ 300 IN A 192.0.2.1 ; here\n"
        'www CNAME @\n*.x 60 IN MX 10 mail\nt TXT "a;b" "c"\n_s._tcp SRV 1 2 3 h.b.example.\nx IN HINFO a b\n'
        "$INCLUDE /etc/passwd\nout.b.example. A 192.0.2.9\n",
    )

    assert [(record.name, record.ttl, record.type) for record in zone.records] == [
        ("a.example", 300, "A"),
        ("www.a.example", 3600, "CNAME"),
        ("*.x.a.example", 60, "MX"),
        ("t.a.example", 3600, "TXT"),
        ("_s._tcp.a.example", 3600, "SRV"),
    ]
    assert zone.records[3].data == {"type": "TXT", "text": "a;bc"}
    assert {name for name, _ in zone.left} == {
        "a.example SOA", "a.example NS", "x.a.example HINFO", "$INCLUDE", "out.b.example A",
    }  # fmt: skip


def test_names_with_underscores_stay_what_they_are() -> None:
    survey = Survey(
        {"cp/ada": b"DNS=shop.example", "userdata/main": b"main_domain: shop.example"},
        {"homedir": (1, 1), "homedir/public_html": (1, 1)},
        {"mysql/ada_wp_shop.sql", "mysql/ada_wp.shop.sql"},
    )

    account = cpmove.read(survey)

    assert account is not None
    assert [database.name for database in account.databases] == ["ada_wp.shop", "ada_wp_shop"]


def test_a_tree_without_an_index_page_has_no_site_and_says_so() -> None:
    account = tree.read(Survey({}, {"": (1, 1)}, {"dump.sql"}))

    assert account.sites == []
    assert [left.reason for left in account.left] == [
        "no folder of the archive has an index page, so no document root was found"
    ]


TEXTS = st.text(alphabet="ab.=:'\"-_/{}[]<>&;@ \n\t0123é\x00", max_size=200)
PATHS = st.sampled_from(
    [
        *(
            "x/cp/ada",
            "cp/ada",
            "userdata/main",
            "userdata/a.example",
            "dnszones/a.example.db",
            "cron/ada",
            "mysql.sql",
        ),
        *(
            "web/a.example/hestia/web.conf",
            "db/x_y/hestia/db.conf",
            "dns/a.example/conf/a.example.db",
            "cron/cron.conf",
        ),
        *(".backup/a.example_virtualmin", ".backup/a.example_web", ".backup/a.example_dns", ".backup/a.example_cron"),
        *("backup_info_1.xml", "public_html/wp-config.php", "index.php"),
    ]
)


@given(
    st.dictionaries(PATHS, st.one_of(TEXTS.map(str.encode), st.binary(max_size=100)), max_size=6),
    st.sets(
        st.sampled_from(["index.php", "public_html/index.html", "mysql/a.sql", "a/b.sql.gz", "public_html/wp-load.php"])
    ),
)
@settings(max_examples=300, deadline=None)
def test_whatever_an_archive_says_is_read_into_an_account_and_back(texts: dict[str, bytes], marks: set[str]) -> None:
    folders = {"": (1, 1), "homedir": (1, 1), "public_html": (1, 1), "web/a.example/domain_data.tar.gz": (1, 1)}

    account = reading.read(Survey(texts, folders, marks))

    assert account_of(account.record()) == account


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_whatever_a_zone_file_says_no_record_is_outside_of_the_zone(text: str) -> None:
    zone = read_zone("a.example", text)

    assert all(record.name == "a.example" or record.name.endswith(".a.example") for record in zone.records)


@given(st.text(alphabet="./abc", max_size=40), st.text(alphabet="./abc", max_size=40))
@settings(max_examples=500, deadline=None)
def test_no_link_leads_out_of_the_site(path: str, target: str) -> None:
    link = f"homedir/public_html/{path.strip('/')}"
    new = link_target(SITE, link, target)
    if new is not None:
        level = placed_at(SITE, link)
        assert level is not None
        depth = level.count("/")
        for part in new.split("/"):
            depth += -1 if part == ".." else 0 if part in ("", ".") else 1
            assert depth >= 0
