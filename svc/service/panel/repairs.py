"""The six parts of a site that can be compared with its records and repaired."""

from __future__ import annotations

from svc.panel.config import PanelConfig
from svc.service.panel.host import Host
from svc.service.panel.served_sites import ServedSites
from svc.service.panel.site_data import SiteData
from svc_actors.panel.repairs import Parts, Repair
from svc_actors.panel.repairs.certificate import SiteCertificatePart
from svc_actors.panel.repairs.databases import Databases
from svc_actors.panel.repairs.permissions import Permissions
from svc_actors.panel.repairs.serving import Configuration, Runtime
from svc_actors.panel.repairs.zones import Zones
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_webhost.certificate_files import CertificateFiles


def repaired_parts(
    config: PanelConfig,
    database: Database,
    host: Host,
    sealer: Sealer,
    *,
    actors: ActorSystem,
    served: ServedSites,
    data: SiteData,
) -> Parts:
    folders = config.folders
    files = CertificateFiles(folders.certificates)
    return {
        Repair.PERMISSIONS: Permissions(host.accounts),
        Repair.CONFIGURATION: Configuration(database, actors, folders, host.web, host.php),
        Repair.RUNTIME: Runtime(database, actors, host.php, host.apps),
        Repair.CERTIFICATE: SiteCertificatePart(database, actors, sealer, files, served.serving, served.certificates),
        Repair.DNS: Zones(database, actors, host.name_server, config.dns.authority(config.public_host)),
        Repair.DATABASE: Databases(database, data.databases),
    }
