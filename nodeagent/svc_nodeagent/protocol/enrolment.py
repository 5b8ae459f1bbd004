"""Enrolment, over the controller's public HTTPS port, before there is a certificate."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.values import Name, Pem, Secret, Wire


class EnrolRequest(Wire):
    """POST /api/v1/nodes/enrol. The agent makes its key; only the request leaves the host."""

    token: Secret = Field(repr=False)
    csr: Pem
    hostname: Name
    host_uuid: UUID


class EnrolResult(Wire):
    node_id: UUID
    certificate: Pem
    authority: Pem
    gateway_host: Name
    gateway_port: int
