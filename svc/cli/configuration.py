"""The configuration file of a service: settings that its command line and environment leave open.

A key is the name of an option without its leading dashes, and the value is the option's; an option that may be repeated
takes an array. The table `database` has `url` and `owner-url`, as in SVC_DATABASE_URL and SVC_DATABASE_OWNER_URL; they
are no options, because they contain secrets. The table `mail` has the values of the variables SVC_MAIL_...; `acme` has
the options that start with `--acme-`, and `backup` those of `svc controller backup` alone. An option wins over the
environment, the environment over the file, the file over the default. An unknown key is an error, since it is most
likely a misspelt one.
"""

from __future__ import annotations

import inspect
import os
import stat
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, TypeVar

import asyncclick as click
from asyncclick.core import ParameterSource

from svc.cli.failures import Exit, Failure
from svc_actors.mail import MAIL_VARIABLES
from svc_actors.store import OWNER_VARIABLE, URL_VARIABLE

ConfigT = TypeVar("ConfigT")

_DATABASE: Final = {"url": URL_VARIABLE, "owner-url": OWNER_VARIABLE}
_BACKUP: Final = {"to": "to", "passphrase-file": "passphrase_file", "keep": "keep", "every": "every"}
_ACME: Final = {
    "contact": "acme_contact",
    "terms-agreed": "acme_terms_agreed",
    "names": "acme_names",
    "directory": "acme_directory",
    "roots": "acme_roots",
    "port": "acme_port",
    "eab-key-id": "acme_eab_key_id",
    "eab-key-file": "acme_eab_key_file",
}
_META: Final = "svc.cli.configuration"
_READ: Final = "svc.cli.configuration.file"


def fill_in(context: click.Context, parameter: click.Parameter, path: Path) -> None:
    """Callback of an eager `--config`: take the file's values for options that were not given. The default file may be
    absent; a file that the user named must exist."""
    assert parameter.name is not None
    try:
        with path.open("rb") as file:
            readable_by_all = bool(os.fstat(file.fileno()).st_mode & stat.S_IROTH)
            settings = tomllib.load(file)
    except FileNotFoundError:
        if context.get_parameter_source(parameter.name) is ParameterSource.DEFAULT:
            return
        raise Failure(Exit.INVALID, f"There is no configuration file {path}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(Exit.INVALID, f"The configuration file {path} cannot be read: {error}") from error
    database, mail, backup, acme = (settings.pop(name, {}) for name in ("database", "mail", "backup", "acme"))
    for name, table in (("database", database), ("mail", mail), ("backup", backup), ("acme", acme)):
        if not isinstance(table, dict):
            raise Failure(Exit.INVALID, f"{path}: `{name}` is a table: [{name}]")
    if database and readable_by_all:
        raise Failure(
            Exit.INVALID,
            f"{path} says how to reach the database, and everybody on this machine may read it.",
            f"Make it readable by the service alone: chmod 640 {path}; chgrp svc {path}",
        )
    # A setting that belongs into a table is not accepted outside of it. A command's own options are no settings of the
    # service, so the file does not have them.
    known = {
        each.opts[-1].lstrip("-"): each.name
        for each in context.command.params
        if isinstance(each, click.Option)
        and each is not parameter
        and not each.is_flag
        and each.name not in {*_BACKUP.values(), *_ACME.values()}
    }
    _refuse_unknown(path, "", settings, known)
    _refuse_unknown(path, "database.", database, _DATABASE)
    _refuse_unknown(path, "mail.", mail, MAIL_VARIABLES)
    _refuse_unknown(path, "backup.", backup, _BACKUP)
    _refuse_unknown(path, "acme.", acme, _ACME)
    context.default_map = (
        {str(known[key]): value for key, value in settings.items()}
        | {_BACKUP[key]: value for key, value in backup.items()}
        | {_ACME[key]: value for key, value in acme.items()}
    )
    context.meta[_READ] = path
    context.meta[_META] = {_DATABASE[key]: str(value) for key, value in database.items()} | {
        MAIL_VARIABLES[key]: str(value) for key, value in mail.items()
    }


def settings(
    options: Sequence[Callable[[Any], Any]], build: Callable[..., ConfigT]
) -> Callable[
    [Callable[Concatenate[ConfigT, Mapping[str, str], ...], Awaitable[None]]], Callable[..., Awaitable[None]]
]:
    """Decorate a command that needs the service's configuration. It is called with the configuration that `build` makes
    of `options` and of the environment, with that environment (which names the database), and with the values of the
    command's own options. `build` raises ValueError for an invalid value in the environment."""
    names = inspect.signature(build).parameters

    def decorate(
        command: Callable[Concatenate[ConfigT, Mapping[str, str], ...], Awaitable[None]],
    ) -> Callable[..., Awaitable[None]]:
        @click.pass_context
        @wraps(command)
        async def run(context: click.Context, /, **given: Any) -> None:
            own = {name: given.pop(name) for name in given.keys() - names}
            environ = environment(context)
            try:
                config = build(environ, **given)
            except ValueError as error:
                raise Failure(Exit.INVALID, f"{error}.") from None
            await command(config, environ, **own)

        for option in reversed(options):
            run = option(run)
        return run

    return decorate


def file_read() -> Path | None:
    """The configuration file from which this command's options were taken; None if there was none."""
    found: Path | None = click.get_current_context().meta.get(_READ)
    return found


def environment(context: click.Context) -> Mapping[str, str]:
    """The process's environment, completed by the values of the file."""
    return {**context.meta.get(_META, {}), **os.environ}


def _refuse_unknown(path: Path, table: str, settings: Mapping[str, Any], known: Mapping[str, object]) -> None:
    if unknown := sorted(settings.keys() - known.keys()):
        raise Failure(
            Exit.INVALID,
            f"{path}: there is no setting {table}{unknown[0]}.",
            f"Settings are {', '.join(table + key for key in sorted(known))}.",
        )
