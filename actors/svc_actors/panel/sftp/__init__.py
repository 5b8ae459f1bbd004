"""Access accounts of sites: who may sign in by SFTP; the server lets in nobody else."""

from svc_actors.panel.sftp.access import SftpAccess
from svc_actors.panel.sftp.records import MOST_LOGINS, SftpRow, login_name

__all__ = ["MOST_LOGINS", "SftpAccess", "SftpRow", "login_name"]
