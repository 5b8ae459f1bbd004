"""The catalogue of publishers' cloud images: the URLs of the file and of its checksum file.

Invariant: the digest of a catalogue image comes from its publisher only; until a refresh has read it, no machine is
created from the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from svc_actors.controller.images.checksums import ChecksumFormat
from svc_actors.store import Database, Transaction
from svc_nodeagent.protocol import PLAIN, Platform


@dataclass(frozen=True)
class Published:
    """`latest` in a URL is part of the publisher's naming: the file at this URL changes, and a refresh reads the new
    digest."""

    slug: str
    name: str
    distribution: str
    release: str
    login_user: str
    url: str
    checksum_url: str
    checksum_format: ChecksumFormat
    algorithm: str
    min_disk_gib: int = 3
    min_memory_mib: int = 512
    platform: Platform = PLAIN
    """The platform that the image needs. An image that also boots by BIOS keeps the default: every node has a BIOS."""

    @property
    def file_name(self) -> str:
        return urlsplit(self.url).path.rsplit("/", 1)[-1]


def _debian(release: str, codename: str) -> Published:
    folder = f"https://cloud.debian.org/images/cloud/{codename}/latest"
    return Published(
        slug=f"debian-{release}",
        name=f"Debian {release} ({codename})",
        distribution="debian",
        release=release,
        login_user="debian",
        url=f"{folder}/debian-{release}-genericcloud-amd64.qcow2",
        checksum_url=f"{folder}/SHA512SUMS",
        checksum_format=ChecksumFormat.GNU,
        algorithm="sha512",
    )


def _ubuntu(release: str, codename: str) -> Published:
    folder = f"https://cloud-images.ubuntu.com/{codename}/current"
    return Published(
        slug=f"ubuntu-{release}",
        name=f"Ubuntu {release} LTS",
        distribution="ubuntu",
        release=release,
        login_user="ubuntu",
        url=f"{folder}/{codename}-server-cloudimg-amd64.img",
        checksum_url=f"{folder}/SHA256SUMS",
        checksum_format=ChecksumFormat.GNU,
        algorithm="sha256",
        min_disk_gib=4,
    )


CATALOGUE: Final = (
    _debian("13", "trixie"),
    _debian("12", "bookworm"),
    _ubuntu("24.04", "noble"),
    _ubuntu("22.04", "jammy"),
    Published(
        slug="almalinux-9",
        name="AlmaLinux 9",
        distribution="almalinux",
        release="9",
        login_user="almalinux",
        url="https://repo.almalinux.org/almalinux/9/cloud/x86_64/images/AlmaLinux-9-GenericCloud-latest.x86_64.qcow2",
        checksum_url="https://repo.almalinux.org/almalinux/9/cloud/x86_64/images/CHECKSUM",
        checksum_format=ChecksumFormat.GNU,
        algorithm="sha256",
        min_disk_gib=10,
        min_memory_mib=1024,
    ),
    Published(
        slug="rocky-9",
        name="Rocky Linux 9",
        distribution="rocky",
        release="9",
        login_user="rocky",
        url="https://dl.rockylinux.org/pub/rocky/9/images/x86_64/Rocky-9-GenericCloud-Base.latest.x86_64.qcow2",
        checksum_url="https://dl.rockylinux.org/pub/rocky/9/images/x86_64/"
        "Rocky-9-GenericCloud-Base.latest.x86_64.qcow2.CHECKSUM",
        checksum_format=ChecksumFormat.BSD,
        algorithm="sha256",
        min_disk_gib=10,
        min_memory_mib=1024,
    ),
    Published(
        slug="fedora-43",
        name="Fedora 43 Cloud",
        distribution="fedora",
        release="43",
        login_user="fedora",
        url="https://download.fedoraproject.org/pub/fedora/linux/releases/43/Cloud/x86_64/images/"
        "Fedora-Cloud-Base-Generic-43-1.6.x86_64.qcow2",
        checksum_url="https://download.fedoraproject.org/pub/fedora/linux/releases/43/Cloud/x86_64/images/"
        "Fedora-Cloud-43-1.6-x86_64-CHECKSUM",
        checksum_format=ChecksumFormat.BSD,
        algorithm="sha256",
        min_disk_gib=5,
        min_memory_mib=1024,
    ),
    Published(
        slug="alpine-3.22",
        name="Alpine Linux 3.22",
        distribution="alpine",
        release="3.22",
        login_user="alpine",
        url="https://dl-cdn.alpinelinux.org/alpine/v3.22/releases/cloud/"
        "nocloud_alpine-3.22.2-x86_64-bios-cloudinit-r0.qcow2",
        checksum_url="https://dl-cdn.alpinelinux.org/alpine/v3.22/releases/cloud/"
        "nocloud_alpine-3.22.2-x86_64-bios-cloudinit-r0.qcow2.sha512",
        checksum_format=ChecksumFormat.BARE,
        algorithm="sha512",
        min_disk_gib=1,
        min_memory_mib=128,
    ),
)


async def ensure_catalogue(database: Database, catalogue: tuple[Published, ...] = CATALOGUE) -> None:
    """Ensure a row for every image of the catalogue. An operator's change (enabled) and the digests are kept; an image
    whose URL has changed loses its digest. If a custom image has the same slug, it keeps the slug."""

    async def work(tx: Transaction) -> None:
        await tx.executemany(
            """INSERT INTO images AS old (slug, name, os_family, distribution, release, login_user, format, source, url,
                                          checksum_url, digest_algorithm, min_disk_gib, min_memory_mib, firmware, tpm,
                                          custom)
               VALUES ($1, $2, 'linux', $3, $4, $5, 'qcow2', 'url', $6, $7, $8, $9, $10, $11, $12, false)
               ON CONFLICT (slug) DO UPDATE
               SET name = excluded.name, url = excluded.url, checksum_url = excluded.checksum_url,
                   digest_algorithm = excluded.digest_algorithm, login_user = excluded.login_user,
                   min_disk_gib = excluded.min_disk_gib, min_memory_mib = excluded.min_memory_mib,
                   firmware = excluded.firmware, tpm = excluded.tpm,
                   digest = CASE WHEN old.url = excluded.url THEN old.digest END
               WHERE NOT old.custom""",
            [
                (
                    image.slug,
                    image.name,
                    image.distribution,
                    image.release,
                    image.login_user,
                    image.url,
                    image.checksum_url,
                    image.algorithm,
                    image.min_disk_gib,
                    image.min_memory_mib,
                    image.platform.firmware.value,
                    image.platform.tpm.value,
                )
                for image in catalogue
            ],
        )

    await database.transact(work)
