"""Backup targets: another folder of this server (for example a mounted disk), a server by SFTP, or S3."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field, TypeAdapter

from svc_actors.panel.backups.data_check_records import forget_place
from svc_actors.panel.backups.places import write_secret
from svc_actors.remote_targets import BucketSettings, SftpSettings, TargetKind, TargetOf, TargetSettings, sealed
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Transaction, UniqueViolationError
from svc_common.errors import conflict
from svc_webhost.restic import Repository, SftpFolder

_COLUMNS: Final = "id, name, settings, sealed_secret"


class LocalSettings(TargetSettings):
    """`marked`: a marker file was written into the folder. If it is missing, another folder is at this path."""

    kind: Literal[TargetKind.LOCAL] = TargetKind.LOCAL
    path: str
    marked: bool = False

    @property
    def location(self) -> str:
        return self.path


AnySettings = Annotated[LocalSettings | SftpSettings | BucketSettings, Field(discriminator="kind")]
SETTINGS: Final[TypeAdapter[AnySettings]] = TypeAdapter(AnySettings)


class TargetRow(TargetOf[AnySettings]):
    table = "backup_targets"
    parser = SETTINGS

    def repository(self, repository_id: UUID | str, work: Path, sealer: Sealer) -> Repository:
        """A site's repository at this target, or another one by its name. Files with credentials are written to `work`,
        which only root can read and which is removed with the job."""
        password = work / "password"
        secret = self.secret(sealer) or ""
        match self.settings:
            case LocalSettings(path=path):
                return Repository(f"{path}/{repository_id}", password)
            case SftpSettings() as sftp:
                told = _told(sftp, secret, work / f"ssh-{self.id}")
                ssh = ["ssh", *told, "-p", str(sftp.port), "-l", sftp.user, sftp.host, "-s", "sftp"]
                at = f"[{sftp.host}]" if ":" in sftp.host else sftp.host
                return Repository(
                    f"sftp:{sftp.user}@{sftp.host}:{sftp.path}/{repository_id}",
                    password,
                    ("-o", f"sftp.command={shlex.join(ssh)}"),
                    sftp=SftpFolder(
                        ("sftp", *told, "-P", str(sftp.port), "-o", f"User={sftp.user}", "-b", "-", at),
                        f"{sftp.path}/{repository_id}",
                    ),
                )
            case BucketSettings() as s3:
                environment = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": secret}
                location = "/".join(part for part in (s3.endpoint, s3.bucket, s3.prefix, str(repository_id)) if part)
                options = ("-o", f"s3.region={s3.region}")
                return Repository(f"s3:{location}", password, options, environment, explains=False)


def _told(settings: SftpSettings, private_key: str, folder: Path) -> list[str]:
    """The argument list of OpenSSH, with every setting that matters: with it OpenSSH reads no configuration of this
    server, asks no questions, and trusts only the pinned key."""
    if not folder.exists():
        folder.mkdir(mode=0o700)
        write_secret(folder / "key", private_key)
        at = settings.host if settings.port == 22 else f"[{settings.host}]:{settings.port}"
        write_secret(folder / "known_hosts", f"{at} {settings.host_key}\n")
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(folder / "known_hosts"),
        "GlobalKnownHostsFile": "/dev/null",
        "IdentitiesOnly": "yes",
        "IdentityFile": str(folder / "key"),
        "PreferredAuthentications": "publickey",
        "ConnectTimeout": "20",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
    }
    told = [argument for name, value in options.items() for argument in ("-o", f"{name}={value}")]
    return ["-F", "none", *told]


async def all_targets(queryable: Queryable) -> list[TargetRow]:
    return [TargetRow.of(row) for row in await queryable.fetch(f"SELECT {_COLUMNS} FROM backup_targets ORDER BY name")]


async def add_target(
    tx: Transaction, sealer: Sealer, target_id: UUID, name: str, settings: AnySettings, secret: str | None
) -> TargetRow:
    """Record a target; its secret is stored sealed. Raises `conflict` if the name is taken."""
    try:
        row = await tx.fetchone(
            f"""INSERT INTO backup_targets (id, name, kind, settings, sealed_secret) VALUES ($1, $2, $3, $4, $5)
                RETURNING {_COLUMNS}""",
            target_id,
            name,
            settings.kind.value,
            settings.model_dump(mode="json"),
            sealed(sealer, secret),
        )
    except UniqueViolationError:
        raise conflict(f"There is already a target with the name {name}.") from None
    return TargetRow.of(row)


async def write_target(
    tx: Transaction, sealer: Sealer, target_id: UUID, settings: AnySettings, secret: str | None
) -> None:
    """Change how the target is reached."""
    await tx.execute(
        "UPDATE backup_targets SET settings = $2, sealed_secret = $3 WHERE id = $1",
        target_id,
        settings.model_dump(mode="json"),
        sealed(sealer, secret),
    )


async def write_marked(tx: Transaction, target_id: UUID) -> None:
    """Record that the folder of a local target has its marker."""
    await tx.execute(
        "UPDATE backup_targets SET settings = settings || '{\"marked\": true}'::jsonb WHERE id = $1", target_id
    )


async def remove_target(tx: Transaction, target_id: UUID) -> None:
    """The target's content stays there; this server forgets it."""
    await forget_place(tx, target_id)
    await tx.execute("DELETE FROM backup_targets WHERE id = $1", target_id)
