"""SFTP for sites: an OpenSSH server of the panel's own, to which only access accounts of sites can sign in.

Why: docs/decisions/0040-sftp-and-shells.md.
"""

from svc_webhost.sftp.configuration import SftpSettings
from svc_webhost.sftp.model import AccessKind, HostKey, SftpError, SftpLogin, SftpServing
from svc_webhost.sftp.server import SftpServer

__all__ = ["AccessKind", "HostKey", "SftpError", "SftpLogin", "SftpServer", "SftpServing", "SftpSettings"]
