"""Where the panel keeps things on its server, all of it beneath the data folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHOWN_CERTIFICATE: Final = "shown.pem"


@dataclass(frozen=True)
class HostFolders:
    """`data` is traversable by everybody (0711); what lies in it has rights of its own."""

    data: Path

    @property
    def sites(self) -> Path:
        """The homes of the sites' accounts: `sites/s<number>/`."""
        return self.data / "sites"

    @property
    def site_logs(self) -> Path:
        """A folder a site, outside its home, so that its account cannot change what was logged."""
        return self.data / "logs" / "sites"

    @property
    def nginx(self) -> Path:
        return self.data / "nginx"

    @property
    def site_passwords(self) -> Path:
        """Of sites that ask for one: `s<number>`, read by the web server's workers."""
        return self.nginx / "passwords"

    @property
    def nginx_log(self) -> Path:
        """What it could not do."""
        return self.nginx / "error.log"

    @property
    def nginx_output(self) -> Path:
        """What it says before it can write a log: while it starts, and of a configuration that it refuses."""
        return self.nginx / "nginx.out"

    @property
    def certificates(self) -> Path:
        return self.data / "certificates"

    @property
    def challenges(self) -> Path:
        """What every site answers below /.well-known/acme-challenge/ (RFC 8555, section 8.3)."""
        return self.data / "acme-challenges"

    @property
    def shown_certificate(self) -> Path:
        """What the web tier shows as soon as it is there: key, certificate and chain in one file."""
        return self.web / SHOWN_CERTIFICATE

    @property
    def web(self) -> Path:
        """The certificate of the panel's own listener: all that the web tier may read."""
        return self.data / "web"

    @property
    def knot(self) -> Path:
        return self.data / "knot"

    @property
    def wordpress(self) -> Path:
        """What is needed to make WordPress sites: readable for everybody."""
        return self.data / "wordpress"

    @property
    def databases(self) -> Path:
        """A folder each for MariaDB and PostgreSQL: `databases/mariadb/`, `databases/postgres/`."""
        return self.data / "databases"

    @property
    def exports(self) -> Path:
        """Exports of databases that wait to be downloaded; root's alone."""
        return self.data / "exports"

    @property
    def imports(self) -> Path:
        """Archives of other hosts, in a folder each: `imports/i<number>/`."""
        return self.data / "imports"

    @property
    def php(self) -> Path:
        """The configurations of php-fpm: a folder a site."""
        return self.data / "php"

    @property
    def php_sockets(self) -> Path:
        return self.run / "php"

    @property
    def sftp(self) -> Path:
        """Of the SFTP server: its keys, its settings, and the accounts that it knows."""
        return self.data / "sftp"

    @property
    def shells(self) -> Path:
        """A socket for each login with a shell: `LOGIN.sock`."""
        return self.run / "shells"

    @property
    def run(self) -> Path:
        """Sockets and pid files."""
        return self.data / "run"

    @property
    def apps(self) -> Path:
        """Sockets of applications: `s<number>.sock` leads to that of the release that visitors come to."""
        return self.run / "apps"

    @property
    def log_pipes(self) -> Path:
        """What programs of sites say, on its way into their logs: `s<number>.php`. Root's alone."""
        return self.run / "logs"

    @property
    def keeper_log(self) -> Path:
        return self.data / "logs" / "keeper.log"

    @property
    def keeper_socket(self) -> Path:
        return self.run / "keeper.sock"

    @property
    def shared_sockets(self) -> Path:
        """Sockets that the programs of every site may connect to, such as those of the database servers; all that they
        see of the data folder beside the home of their account."""
        return self.run / "shared"

    @property
    def mariadb_socket(self) -> Path:
        return self.shared_sockets / "mariadb" / "mysqld.sock"

    @property
    def postgres_sockets(self) -> Path:
        """A folder: PostgreSQL's clients know what lies in it."""
        return self.shared_sockets / "postgres"

    @property
    def client_settings(self) -> Path:
        """By these the programs of sites find the database servers as `localhost`: settings of PHP and of MariaDB's
        client library."""
        return self.shared_sockets / "settings"
