"""Extensions of the server's PHP. Administrators only."""

from __future__ import annotations

from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.sites.php import newest_version, require_version
from svc_actors.panel.sites.php_extensions import ExtensionChange, enqueue_change
from svc_actors.store import Target, Transaction, audit
from svc_common.errors import conflict, not_found
from svc_webhost.php import PhpVersion
from svc_webhost.php.extensions import ExtensionName, ExtensionState

operations = Operations[Panel]()


class PhpExtensionInfo(Model):
    version: str
    name: str
    state: ExtensionState


class PhpExtensionListRequest(Request):
    """`version`: by default the newest on the server."""

    version: PhpVersion | None = None


class PhpExtensionInstallRequest(Request):
    """`name` of an extension that is available."""

    version: PhpVersion
    name: ExtensionName


class PhpExtensionEnableRequest(Request):
    """`name` of an extension that is installed."""

    version: PhpVersion
    name: ExtensionName


class PhpExtensionDisableRequest(Request):
    """`name` of an extension that is enabled. Sites that need it will fail."""

    version: PhpVersion
    name: ExtensionName


@operations.declare(
    "php.extension_list",
    "The PHP extensions installed on this server, and those that Debian offers",
    Route.get("/php/extensions"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("php", "extension", "list"),
    columns=("name", "state", "version"),
)
async def list_extensions(context: Context[Panel], request: PhpExtensionListRequest) -> list[PhpExtensionInfo]:
    versions = await context.services.php.versions()
    version = request.version or newest_version(versions)
    require_version(version, versions)
    found = await context.services.php_extensions.states(version)
    return [PhpExtensionInfo(version=version, name=name, state=state) for name, state in found.items()]


@operations.declare(
    "php.extension_install",
    "Install a PHP extension from Debian and enable it for the sites of that version",
    Route.post("/php/extensions/install"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("php", "extension", "install"),
    positional=("version", "name"),
)
async def install(context: Context[Panel], request: PhpExtensionInstallRequest) -> JobModel:
    return await _changed(context, ExtensionChange.INSTALL, request.version, request.name, ExtensionState.AVAILABLE)


@operations.declare(
    "php.extension_enable",
    "Enable an installed extension for the sites of a PHP version",
    Route.post("/php/extensions/enable"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("php", "extension", "enable"),
    positional=("version", "name"),
)
async def enable(context: Context[Panel], request: PhpExtensionEnableRequest) -> JobModel:
    return await _changed(context, ExtensionChange.ENABLE, request.version, request.name, ExtensionState.DISABLED)


@operations.declare(
    "php.extension_disable",
    "Disable an extension for the sites of a PHP version",
    Route.post("/php/extensions/disable"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("php", "extension", "disable"),
    positional=("version", "name"),
)
async def disable(context: Context[Panel], request: PhpExtensionDisableRequest) -> JobModel:
    return await _changed(context, ExtensionChange.DISABLE, request.version, request.name, ExtensionState.ENABLED)


async def _changed(
    context: Context[Panel], change: ExtensionChange, version: str, name: str, needed: ExtensionState
) -> JobModel:
    services = context.services
    require_version(version, await services.php.versions())
    state = (await services.php_extensions.states(version)).get(name)
    if state is None:
        raise not_found(
            f"There is no extension {name} for PHP {version}.", hint="`svc php extension list` shows the extensions."
        )
    if state is not needed:
        raise conflict(f"{name} of PHP {version} is {state.value}; nothing was changed.")

    async def work(tx: Transaction) -> JobModel:
        job = await enqueue_change(tx, change, version, name)
        await audit.record(tx, context.caller, Target("php_extension", f"{version}/{name}", name), {"job": job.id})
        return await job_answer(tx, job)

    return await services.database.transact(work)
