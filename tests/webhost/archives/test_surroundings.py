"""What comes along with a document root that lies in the folder of an application: Laravel, Symfony, Craft, Magento and
programs of one's own, as cPanel, Plesk, Hestia, Virtualmin and people pack them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc_webhost.archives.model import Account, FoundSite
from svc_webhost.archives.placing import link_target, placed_at
from svc_webhost.confined.survey import survey
from tests.support.foreign_archives import Packer

PORTAL: Final = "portal.example"
MAIN: Final = "shop.example"


@dataclass(frozen=True)
class Application:
    """`root`: its document root, relative to its folder. `needs`: what its front page includes."""

    root: str
    needs: tuple[str, ...]


LARAVEL: Final = Application("public", ("vendor/autoload.php", "bootstrap/app.php", ".env", "artisan"))
SYMFONY: Final = Application("public", ("vendor/autoload_runtime.php", "bin/console", ".env.local", "config/a.yaml"))
CRAFT: Final = Application("web", ("vendor/autoload.php", "craft", ".env", "config/general.php", "storage/x"))
MAGENTO: Final = Application("pub", ("app/bootstrap.php", "app/etc/env.php", "bin/magento", "vendor/autoload.php"))
CAKE: Final = Application("webroot", ("vendor/autoload.php", "config/app_local.php", "tmp/cache/x", "logs/error.log"))
PLAIN: Final = Application("www", ("config/database.php", "lib/x.php", ".hidden/x"))
APPLICATIONS: Final = pytest.mark.parametrize(
    "application",
    [LARAVEL, SYMFONY, CRAFT, MAGENTO, CAKE, PLAIN],
    ids=["laravel", "symfony", "craft", "magento", "cake", "plain"],
)


def read_archive(content: bytes) -> Account:
    with tempfile.TemporaryFile() as archive:
        archive.write(content)
        archive.seek(0)
        return survey(archive)


def files_of(application: Application, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in (*application.needs, f"{application.root}/index.php")]


def cpanel(roots: Mapping[str, str], files: Iterable[str], links: Mapping[str, str] | None = None) -> Account:
    """The account of a home with these files. `roots`: the document roots in it, that of the main domain first."""
    packed = Packer()
    main, *subs = roots
    packed.file("cp/ada", f"DNS={main}\nUSER=ada\n")
    listed = "".join(f"\n  - {name}" for name in subs)
    packed.file("userdata/main", f"main_domain: {main}\nsub_domains:{listed}\n")
    for domain, root in roots.items():
        documents = f"/home/ada/{root}".rstrip("/")
        packed.file(f"userdata/{domain}", f"documentroot: {documents}\nhomedir: /home/ada\n")
    for name in files:
        packed.file(f"homedir/{name}", "x")
    for name, target in (links or {}).items():
        packed.link(f"homedir/{name}", target)
    return read_archive(packed.gzipped())


def plesk(root: str, files: Iterable[str]) -> Account:
    packed, contents = Packer(), Packer()
    for name in files:
        contents.file(name, "x")
    content = '<cid type="user-data" path=""><content-file size="1">backup_user-data_1.tgz</content-file></cid>'
    packed.file(
        "backup_info_2601010101.xml",
        f'<migration-dump><domain name="{PORTAL}"><phosting www-root="{root}"><content>{content}</content>'
        "</phosting></domain></migration-dump>",
    )
    packed.file("backup_user-data_1.tgz", contents.gzipped())
    return read_archive(packed.whole())


def hestia(root: str, files: Iterable[str]) -> Account:
    packed, contents = Packer(), Packer()
    for name in files:
        contents.file(name, "x")
    custom = f"/home/ada/web/{PORTAL}/{root}/"
    packed.file(f"web/{PORTAL}/hestia/web.conf", f"DOMAIN='{PORTAL}' USER='ada' CUSTOM_DOCROOT='{custom}'\n")
    packed.file(f"web/{PORTAL}/domain_data.tar.gz", contents.gzipped())
    return read_archive(packed.whole())


def virtualmin(root: str, files: Iterable[str]) -> Account:
    packed = Packer()
    packed.file(f".backup/{PORTAL}_virtualmin", f"dom={PORTAL}\nuser=ada\nhome=/home/ada\n")
    packed.file(f".backup/{PORTAL}_web", f"DocumentRoot /home/ada/{root}\n")
    for name in files:
        packed.file(name, "x")
    return read_archive(packed.gzipped())


def site_of(account: Account, domain: str) -> FoundSite:
    return next(site for site in account.sites if site.domain == domain)


def places(account: Account, domain: str, paths: Iterable[str]) -> list[str | None]:
    return [placed_at(site_of(account, domain), path) for path in paths]


@APPLICATIONS
@pytest.mark.parametrize("folder", ["portal", "projects/portal", "public_html/portal"])
def test_the_application_above_a_document_root_comes_along(application: Application, folder: str) -> None:
    files = files_of(application, folder)
    account = cpanel({MAIN: "public_html", PORTAL: f"{folder}/{application.root}"}, ["public_html/index.html", *files])

    placed = places(account, PORTAL, [f"homedir/{name}" for name in files])

    assert placed == [*application.needs, "public/index.php"]
    assert site_of(account, PORTAL).files == len(files)


@APPLICATIONS
@pytest.mark.parametrize("folder", ["portal", "projects/portal", "public_html/portal"])
def test_it_is_taken_once_and_shown_to_no_visitor_of_another_site(application: Application, folder: str) -> None:
    files = files_of(application, folder)
    account = cpanel({MAIN: "public_html", PORTAL: f"{folder}/{application.root}"}, ["public_html/index.html", *files])

    assert places(account, MAIN, [f"homedir/{name}" for name in files]) == [None] * len(files)
    assert places(account, MAIN, ["homedir/public_html/index.html"]) == ["public/index.html"]


@APPLICATIONS
@pytest.mark.parametrize(
    ("packed", "folder", "above"),
    [
        (plesk, "httpdocs", "backup_user-data_1.tgz/"),
        (plesk, "apps/portal", "backup_user-data_1.tgz/"),
        (hestia, "public_html", f"web/{PORTAL}/domain_data.tar.gz/"),
        (virtualmin, "public_html", ""),
        (virtualmin, "portal", ""),
    ],
    ids=["plesk", "plesk, deeper", "hestia", "virtualmin", "virtualmin, in the home"],
)
def test_other_panels_pack_it_likewise(
    application: Application, packed: Callable[[str, Iterable[str]], Account], folder: str, above: str
) -> None:
    files = files_of(application, folder)
    account = packed(f"{folder}/{application.root}", files)

    assert places(account, PORTAL, [above + name for name in files]) == [*application.needs, "public/index.php"]


@pytest.mark.parametrize("application", [LARAVEL, SYMFONY, CRAFT])
@pytest.mark.parametrize("folder", ["portal.example", ""], ids=["in a folder", "alone"])
def test_an_application_packed_by_hand_keeps_what_lies_beside(application: Application, folder: str) -> None:
    packed = Packer()
    files = [name.lstrip("/") for name in files_of(application, folder)]
    for name in files:
        packed.file(name, "x")

    account = read_archive(packed.gzipped())

    assert [placed_at(account.sites[0], name) for name in files] == [*application.needs, "public/index.php"]


@APPLICATIONS
def test_the_folder_above_a_document_root_fetched_by_ssh_is_its_application(application: Application) -> None:
    packed = Packer()
    folders = [f"/srv/portal/{application.root}", "/srv/portal"]
    packed.file("svc-import.json", json.dumps({"domain": PORTAL, "folders": folders, "database": None}))
    files = files_of(application, "srv/portal")
    for name in files:
        packed.file(name, "x")

    account = read_archive(packed.gzipped())

    assert places(account, PORTAL, files) == [*application.needs, "public/index.php"]


@pytest.mark.parametrize(
    ("files", "uploads"),
    [
        (
            ["configuration.php", "libraries/src/Version.php"],
            {"/images": "Joomla", "/media": "Joomla", "/tmp": "Joomla"},
        ),
        (["core/lib/Drupal.php"], {"/sites/default/files": "Drupal"}),
        (["blog/wp-load.php"], {"/blog/wp-content/uploads": "WordPress"}),
        (["config/settings.inc.php"], {"/img": "PrestaShop", "/upload": "PrestaShop", "/download": "PrestaShop"}),
        (["old/app/etc/local.xml"], {"/old/media": "Magento", "/old/var": "Magento"}),
        (["index.php"], {}),
    ],
)
def test_where_products_keep_uploads_is_known(files: list[str], uploads: dict[str, str]) -> None:
    account = cpanel({PORTAL: "public_html"}, [f"public_html/{name}" for name in files])

    assert site_of(account, PORTAL).uploads == uploads


def test_uploads_of_an_application_are_below_its_document_root() -> None:
    magento = cpanel({PORTAL: "shop/pub"}, files_of(MAGENTO, "shop"))
    laravel = cpanel(
        {MAIN: "public_html", PORTAL: "public_html/portal/public"}, files_of(LARAVEL, "public_html/portal")
    )

    assert site_of(magento, PORTAL).uploads == {"/media": "Magento"}
    assert site_of(laravel, PORTAL).uploads == {"/storage": "Laravel"}
    assert site_of(laravel, MAIN).uploads == {}


def test_a_document_root_that_is_a_link_is_the_folder_to_which_it_leads() -> None:
    files = files_of(LARAVEL, "portal")
    for target in ("portal/public", "/home/ada/portal/public", "./portal/../portal/public/"):
        account = cpanel({PORTAL: "public_html"}, files, {"public_html": target})

        placed = places(account, PORTAL, [f"homedir/{name}" for name in files])
        assert placed == [*LARAVEL.needs, "public/index.php"]


@pytest.mark.parametrize("target", ["/etc", "../../etc", "public_html", "/home/adam/x"])
def test_a_document_root_that_leads_out_or_in_a_circle_has_no_files(target: str) -> None:
    account = cpanel({PORTAL: "public_html"}, ["portal/x"], {"public_html": target})

    assert site_of(account, PORTAL).root == "homedir/public_html"


def test_an_application_that_is_the_home_keeps_its_own_files() -> None:
    files = ["public_html/index.php", ".env", "artisan", "vendor/autoload.php", "private/key"]
    others = [".bash_history", ".ssh/id_rsa", "backup-1.2.2026_ada.tar.gz", "mail/x", "etc/passwd"]
    account = cpanel({PORTAL: "public_html"}, [*files, *others])

    assert places(account, PORTAL, [f"homedir/{name}" for name in files]) == ["public/index.php", *files[1:]]
    assert places(account, PORTAL, [f"homedir/{name}" for name in others]) == [None] * len(others)


def test_a_home_that_is_a_document_root_shows_nothing_of_the_old_panel() -> None:
    account = cpanel({PORTAL: ""}, ["index.php", "mail/ada/cur/1", "etc/shadow", "img/x"])

    assert places(account, PORTAL, ["homedir/index.php", "homedir/img/x"]) == ["public/index.php", "public/img/x"]
    assert places(account, PORTAL, ["homedir/mail/ada/cur/1", "homedir/etc/shadow"]) == [None, None]


def test_sites_that_share_an_application_have_it_once_and_the_plan_says_who() -> None:
    files = ["app/a/index.php", "app/b/index.php", "app/vendor/autoload.php"]
    account = cpanel({PORTAL: "app/a", MAIN: "app/b"}, files)

    assert places(account, PORTAL, [f"homedir/{name}" for name in files]) == [
        "public/index.php", None, "vendor/autoload.php",
    ]  # fmt: skip
    assert places(account, MAIN, [f"homedir/{name}" for name in files]) == [None, "public/index.php", None]
    assert [(left.name, left.reason) for left in account.left] == [
        (f"homedir/app for {MAIN}", f"what lies there besides document roots comes along with {PORTAL} alone")
    ]


def test_sites_with_one_document_root_both_have_it() -> None:
    account = cpanel({PORTAL: "app/public", MAIN: "app/public"}, ["app/public/index.php", "app/vendor/autoload.php"])

    for domain in (PORTAL, MAIN):
        assert places(account, domain, ["homedir/app/public/index.php"]) == ["public/index.php"]


def test_a_folder_within_another_site_stays_there_if_it_is_no_applications() -> None:
    account = cpanel(
        {MAIN: "public_html", PORTAL: "public_html/clients/portal"},
        ["public_html/clients/portal/index.html", "public_html/clients/list.html"],
    )

    assert places(account, MAIN, ["homedir/public_html/clients/list.html"]) == ["public/clients/list.html"]
    assert places(account, PORTAL, ["homedir/public_html/clients/list.html"]) == [None]


def test_folders_of_the_home_never_meet_those_of_an_application() -> None:
    files = ["portal/public/index.php", "portal/vendor/autoload.php", "portal/shared/x", "vendor/autoload.php", "lib/x"]
    account = cpanel({PORTAL: "portal/public"}, files)

    placed = places(account, PORTAL, [f"homedir/{name}" for name in files])

    assert placed == [
        "public/index.php", "vendor/autoload.php", "private/shared/x", "private/vendor/autoload.php", "private/lib/x",
    ]  # fmt: skip
    assert site_of(account, PORTAL).renamed == ["shared"]


def test_a_link_within_the_application_leads_where_it_led() -> None:
    account = cpanel({PORTAL: "portal/public"}, files_of(LARAVEL, "portal"))
    site = site_of(account, PORTAL)

    for target in ("../storage/app/public", "/home/ada/portal/storage/app/public"):
        assert link_target(site, "homedir/portal/public/storage", target) == "../storage/app/public"
    assert link_target(site, "homedir/portal/public/x", "../../mail") is None


NAMES = st.sampled_from(["a", "b", "public", "web", "vendor", "private", "shared", ".env", "artisan", "composer.json"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@given(st.lists(PATHS, min_size=1, max_size=4), st.sets(PATHS, max_size=12))
@settings(max_examples=60, deadline=None)
def test_no_file_is_taken_by_two_sites_nor_two_files_by_one_place(roots: list[str], names: set[str]) -> None:
    files = sorted(name for name in names if not any(other.startswith(f"{name}/") for other in names))
    account = cpanel({f"s{number}.example": root for number, root in enumerate(roots)}, files)

    for name in files:
        takers = [site for site in account.sites if placed_at(site, f"homedir/{name}") is not None]
        assert len({site.root for site in takers}) <= 1
    for site in account.sites:
        taken = [placed for name in files if (placed := placed_at(site, f"homedir/{name}")) is not None]
        assert len(taken) == len(set(taken))
