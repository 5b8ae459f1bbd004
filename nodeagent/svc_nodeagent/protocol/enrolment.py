"""Enrolment, over the controller's public HTTPS port, before there is a certificate."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.values import Name, Pem, Secret, Wire

CONTROLLER_NAME: Final = "nodes.svc.internal"
"""The name that a node requests at the public port by server name indication (RFC 6066), and verifies: for this name
the controller shows a certificate of its own authority, whatever certificate browsers are shown."""


class EnrolRequest(Wire):
    """POST /api/v1/nodes/enrol. The agent generates its key; only the certificate signing request leaves the host."""

    token: Secret = Field(repr=False)
    csr: Pem
    hostname: Name
    host_uuid: UUID


class EnrolResult(Wire):
    node_id: UUID
    certificate: Pem
    authority: Pem
    gateway_host: Name
    gateway_port: int = Field(ge=0, le=65_535)
