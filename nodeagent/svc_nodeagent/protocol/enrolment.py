"""Enrolment, over the controller's public HTTPS port, before there is a certificate."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.values import Wire


class EnrolRequest(Wire):
    """POST /api/v1/nodes/enrol. The agent makes its key; only the request leaves the host."""

    token: str = Field(repr=False)
    csr: str
    hostname: str
    host_uuid: UUID


class EnrolResult(Wire):
    node_id: UUID
    certificate: str
    authority: str
    gateway_host: str
    gateway_port: int
