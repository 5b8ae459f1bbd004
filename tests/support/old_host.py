"""A host that a site comes from: Apache with .htaccess files, php-fpm, MariaDB and SSH, as its customers use it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from svc_webhost.nginx import SiteServer, StaticRoot
from tests.support.apache import accepting, apache, php_fpm
from tests.support.foreign_archives import DATABASE, PASSWORD, Tree
from tests.support.sshd import Sshd, open_sshd

USER: Final = "ada_wp"


@dataclass(frozen=True)
class OldHost:
    folder: Path
    http_port: int
    sshd: Sshd
    database: Path
    """MariaDB's socket."""

    @property
    def root(self) -> Path:
        return self.folder / "www"

    @property
    def home(self) -> Path:
        """Of the account that signs in."""
        return self.folder / "home"

    async def sql(self, statements: str) -> str:
        """What its administrator is answered."""
        command = ["/usr/bin/mariadb", "--no-defaults", f"--socket={self.database}", "--batch", "--skip-column-names"]
        done = await trio.run_process(command, stdin=statements.encode(), capture_stdout=True)
        return done.stdout.decode()


@asynccontextmanager
async def open_old_host(domain: str, tree: Tree, dump: str) -> AsyncIterator[OldHost]:
    """The site of `tree` is served there by HTTP, with `dump` in its database."""
    folder = Path(tempfile.mkdtemp(prefix="svc-old-host-"))
    folder.chmod(0o755)
    try:
        place(tree, folder / "www")
        (folder / "home").mkdir()
        with (
            mariadb(folder / "mariadb") as database,
            php_fpm(folder / "php", {"mysqli.default_socket": str(database)}) as php,
            apache(
                folder / "apache",
                [SiteServer(number=1, domain=domain, serves=StaticRoot(root=str(folder / "www")))],
                {1: folder / "www"},
                php=php,
            ) as (http, _),
        ):
            async with open_sshd(folder / "sshd") as sshd:
                with (sshd.folder / "config").open("a") as configuration:
                    configuration.write(f"SetEnv MYSQL_HOME={folder} HOME={folder / 'home'}\n")
                (folder / "my.cnf").write_text(f"[client]\nsocket = {database}\n")
                host = OldHost(folder, http, sshd, database)
                await sshd.start()
                for address in (database, php, http):
                    await accepting(address)
                password = PASSWORD.replace("'", "''")
                await host.sql(
                    f"CREATE DATABASE {DATABASE}; CREATE USER {USER}@localhost IDENTIFIED BY '{password}';"
                    f"GRANT ALL ON {DATABASE}.* TO {USER}@localhost; USE {DATABASE};{dump}"
                )
                yield host
    finally:
        await trio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))


def place(tree: Tree, folder: Path) -> None:
    for name, content in tree.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for name, target in tree.links.items():
        (folder / name).symlink_to(target)


@contextmanager
def mariadb(folder: Path) -> Iterator[Path]:
    """Gives its socket; its administrator is this machine's root."""
    data, socket = folder / "data", folder / "mysqld.sock"
    folder.mkdir()
    shutil.chown(folder, "mysql", "mysql")
    words = ["--no-defaults", "--user=mysql", f"--datadir={data}"]
    set_up = ["/usr/bin/mariadb-install-db", *words, "--auth-root-authentication-method=socket", "--skip-test-db"]
    subprocess.run(set_up, check=True, capture_output=True, timeout=120)
    server = ["/usr/sbin/mariadbd", *words, f"--socket={socket}", f"--pid-file={folder / 'pid'}", "--skip-networking"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(server, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield socket
    finally:
        process.terminate()
        process.wait(60)
