"""SFTP for sites: an OpenSSH server of the panel's own. Nobody but the access accounts of sites can sign in to it."""

from svc_actors.host.sftp.configuration import SftpSettings
from svc_actors.host.sftp.model import AccessKind, HostKey, SftpError, SftpLogin, SftpServing
from svc_actors.host.sftp.server import SftpServer

__all__ = ["AccessKind", "HostKey", "SftpError", "SftpLogin", "SftpServer", "SftpServing", "SftpSettings"]
