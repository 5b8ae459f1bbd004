"""Knot DNS as the panel runs it: with its own configuration and folder; zones are changed over the control socket."""

from svc_actors.host.knot.configuration import KnotSettings
from svc_actors.host.knot.control import KnotAway, KnotError
from svc_actors.host.knot.data import RecordData, RecordType
from svc_actors.host.knot.server import Agreement, KnotServer, NameServer
from svc_actors.host.knot.zone import Authority, ResourceRecord, Served, Zone

__all__ = [
    "Agreement",
    "Authority",
    "KnotAway",
    "KnotError",
    "KnotServer",
    "KnotSettings",
    "NameServer",
    "RecordData",
    "RecordType",
    "ResourceRecord",
    "Served",
    "Zone",
]
