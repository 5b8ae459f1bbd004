"""The panel's folders on its server, all below the data folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHOWN_CERTIFICATE: Final = "shown.pem"


@dataclass(frozen=True)
class HostFolders:
    """`data` is traversable by everybody (0711); its entries have rights of their own."""

    data: Path

    @property
    def sites(self) -> Path:
        """The homes of the sites' accounts: `sites/s<number>/`."""
        return self.data / "sites"

    @property
    def site_logs(self) -> Path:
        """A folder per site, outside of its home, so that its account cannot change the logs."""
        return self.data / "logs" / "sites"

    @property
    def nginx(self) -> Path:
        return self.data / "nginx"

    @property
    def site_passwords(self) -> Path:
        """Password files of sites that ask for one: `s<number>`, read by the web server's workers."""
        return self.nginx / "passwords"

    @property
    def nginx_log(self) -> Path:
        """nginx's log of errors."""
        return self.nginx / "error.log"

    @property
    def nginx_output(self) -> Path:
        """nginx's output before it can write a log: at its start, and about a configuration that it refuses."""
        return self.nginx / "nginx.out"

    @property
    def certificates(self) -> Path:
        return self.data / "certificates"

    @property
    def challenges(self) -> Path:
        """Answers of every site below /.well-known/acme-challenge/ (RFC 8555, section 8.3)."""
        return self.data / "acme-challenges"

    @property
    def shown_certificate(self) -> Path:
        """The certificate that the web tier shows once it exists: key, certificate and chain in one file."""
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
        """Files for the installation of WordPress sites: readable for everybody."""
        return self.data / "wordpress"

    @property
    def databases(self) -> Path:
        """A folder each for MariaDB and PostgreSQL: `databases/mariadb/`, `databases/postgres/`."""
        return self.data / "databases"

    @property
    def exports(self) -> Path:
        """Exports of databases that wait to be downloaded; only root can read them."""
        return self.data / "exports"

    @property
    def imports(self) -> Path:
        """Archives of other hosts, in a folder each: `imports/i<number>/`."""
        return self.data / "imports"

    @property
    def php(self) -> Path:
        """Configurations of php-fpm: a folder per site."""
        return self.data / "php"

    @property
    def php_sockets(self) -> Path:
        return self.run / "php"

    @property
    def sftp(self) -> Path:
        """The SFTP server's keys, settings and accounts."""
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
        """Sockets of applications: `s<number>.sock` links to that of the release that visitors reach."""
        return self.run / "apps"

    @property
    def log_pipes(self) -> Path:
        """Pipes for the output of sites' programs, on its way into their logs: `s<number>.php`. Only root can use
        them."""
        return self.run / "logs"

    @property
    def keeper_log(self) -> Path:
        return self.data / "logs" / "keeper.log"

    @property
    def keeper_socket(self) -> Path:
        return self.run / "keeper.sock"

    @property
    def shared_sockets(self) -> Path:
        """Sockets that the programs of every site may connect to, such as those of the database servers. Programs see
        nothing else of the data folder except the home of their account."""
        return self.run / "shared"

    @property
    def mariadb_socket(self) -> Path:
        return self.shared_sockets / "mariadb" / "mysqld.sock"

    @property
    def postgres_sockets(self) -> Path:
        """A folder, in which PostgreSQL's clients know the name of the socket."""
        return self.shared_sockets / "postgres"

    @property
    def site_mail(self) -> Path:
        """The sendmail of sites' programs, and the socket that it hands mail to (`svc_webhost.mail`)."""
        return self.shared_sockets / "mail"

    @property
    def mail_spool(self) -> Path:
        """Messages of sites on their way to the relay; only root can read them."""
        return self.data / "mail"

    @property
    def client_settings(self) -> Path:
        """Settings of PHP and of MariaDB's client library with which programs of sites find the database servers as
        `localhost`."""
        return self.shared_sockets / "settings"
