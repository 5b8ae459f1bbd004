"""The agent's hypervisor: libvirt and QEMU on Trio, disks, images, seeds, networks, consoles, metrics."""

from svc_nodeagent.hypervisor.host import LibvirtHost
from svc_nodeagent.hypervisor.naming import Naming

__all__ = ["LibvirtHost", "Naming"]
