"""Deployments of applications: new code replaces the running one, and can be rolled back."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.panel.apps.apps import shown_app
from svc.panel.apps.models import SiteAppModel
from svc.panel.files.models import SitePath
from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, locked_site_of, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.accounts.disk_use import require_disk_room
from svc_actors.panel.apps import SiteApp, deploying
from svc_actors.panel.apps.deploy_keys import deploy_key_for
from svc_actors.panel.apps.deployments import (
    Deployment,
    DeploymentStatus,
    Source,
    deployments_of,
    insert_deployment,
    next_number,
)
from svc_actors.panel.apps.records import AppRow, app_of
from svc_actors.panel.files import site_folder
from svc_actors.panel.host_work import soon
from svc_actors.panel.jobs import JobClass, NewJob, enqueue, require_turn
from svc_actors.store import Transaction, audit
from svc_common.errors import wrong_field
from svc_webhost.apps import AppRuntime
from svc_webhost.apps.builds import SCRIPT, Build
from svc_webhost.apps.repository import REF, URL

operations = Operations[Panel]()

GitUrl = Annotated[
    str,
    Field(
        max_length=500,
        description="Git repository: a public one by https://, or one for which the site has a deploy key.",
    ),
    Shape(URL, "a URL such as https://git.example/shop.git, without a password, or git@git.example:shop.git"),
]
GitRef = Annotated[
    str,
    Field(
        max_length=200, description="A branch, a tag or a whole commit; the repository's default branch if left out."
    ),
    Shape(REF, "a branch, a tag or a commit"),
]
BuildScript = Annotated[
    str,
    Field(max_length=64, description="Script of package.json for npm to run after installing the dependencies."),
    Shape(SCRIPT, "the name of a script in package.json, such as build"),
]


class AppDeploymentModel(Model):
    """`live`: visitors are served by it. A rollback needs the status `ready`; the code of a `removed` deployment was
    deleted. `git_commit`: the commit that `git_ref` named when it was fetched."""

    number: int
    archive: str | None
    git_url: str | None
    git_ref: str | None
    git_commit: str | None
    build: Build
    build_script: str | None
    status: DeploymentStatus
    live: bool
    problem: str | None
    job_id: int
    created_at: datetime

    @classmethod
    def of(cls, deployment: Deployment, app: AppRow) -> AppDeploymentModel:
        return cls(
            number=deployment.number,
            archive=deployment.source.archive,
            git_url=deployment.source.git_url,
            git_ref=deployment.source.git_ref,
            git_commit=deployment.git_commit,
            build=deployment.build,
            build_script=deployment.build_script,
            status=deployment.status,
            live=app.live is not None and deployment.number == app.live_deployment,
            problem=deployment.problem,
            job_id=deployment.job_id,
            created_at=deployment.created_at,
        )


class DeploymentsRequest(SiteRequest):
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class DeployRequest(SiteChange):
    """Either `archive`, a zip or tar archive among the site's files, or `git_url` with `git_ref`: a public repository
    by https://, or by SSH one that the site's deploy key may read."""

    archive: SitePath | None = None
    git_url: GitUrl | None = None
    git_ref: GitRef | None = None
    build: Build = Build.NONE
    build_script: BuildScript | None = None

    @property
    def source(self) -> Source:
        """The source that the request names. Raises `invalid` unless it names exactly one."""
        if self.git_url is not None and self.archive is None:
            return Source(git_url=self.git_url, git_ref=self.git_ref or "HEAD")
        if self.git_url is not None or self.archive is None:
            raise wrong_field("archive", "give either an archive or a repository (git_url)")
        if self.git_ref is not None:
            raise wrong_field("git_ref", "applies only to a repository (git_url)")
        return Source(archive=self.archive)

    def require_fitting(self, runtime: AppRuntime) -> None:
        """Raise `invalid` if the build needs another runtime than the application has."""
        if self.build not in _BUILDS[runtime]:
            fitting = ", ".join(build.value for build in _BUILDS[runtime])
            raise wrong_field("build", f"the application runs on {runtime.value}, which takes {fitting}")
        if self.build_script is not None and self.build is not Build.NPM:
            raise wrong_field("build_script", "npm runs the script: set build to npm as well")


_BUILDS: Final = {AppRuntime.PYTHON: (Build.NONE, Build.PIP, Build.UV), AppRuntime.NODE: (Build.NONE, Build.NPM)}


class RollbackRequest(SiteChange):
    """`deployment`: by default the one before the running deployment."""

    deployment: Annotated[int | None, Field(ge=1, le=2**31 - 1)] = None


@operations.declare(
    "app.deployments",
    "The deployments of a site's application, the newest first",
    Route.get("/sites/{id}/deployments"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("number", "status", "live", "archive", "git_url", "git_ref", "build", "created=created_at", "problem"),
)
async def list_deployments(context: Context[Panel], request: DeploymentsRequest) -> list[AppDeploymentModel]:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    app = await app_of(database, site)
    found = await deployments_of(database, site.id, request.limit)
    return [AppDeploymentModel.of(one, app) for one in found]


@operations.declare(
    "app.deploy",
    "Deploy new code of a site's application: a job",
    Route.post("/sites/{id}/deploy"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "archive"),
    target="site",
)
async def deploy(context: Context[Panel], request: DeployRequest) -> JobModel:
    site_id: UUID = request.id
    source = request.source

    async def write(tx: Transaction) -> JobModel:
        site = await locked_site_of(tx, context.principal, site_id)
        app = await app_of(tx, site)
        request.require_fitting(app.runtime)
        site_folder(context.services.config.folders, site)
        if source.by_ssh is not None:
            await deploy_key_for(tx, site, source.by_ssh)
        number = await next_number(tx, site.id)
        await require_disk_room(tx, site.id, 0)
        await require_turn(tx, site.id, site.owner_id)
        ordered = {"number": number, **source.record, "build": request.build.value}
        if request.build_script is not None:
            ordered["build_script"] = request.build_script
        job = await enqueue(
            tx,
            NewJob(
                kind=deploying.KIND,
                title=f"Deploy {source} to {site.domain}"[:200],
                job_class=JobClass.SITES,
                steps=deploying.STEPS,
                site_id=site.id,
                owner_id=site.owner_id,
                parameters={**ordered, "folder": app.folder},
            ),
        )
        await insert_deployment(tx, site.id, number, source, request.build, request.build_script, job.id)
        await audit.record(tx, context.caller, site.target, {**ordered, "job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(write)


@operations.declare(
    "app.rollback",
    "Roll a site's application back to an earlier deployment",
    Route.post("/sites/{id}/rollback"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="site",
)
async def roll_back(context: Context[Panel], request: RollbackRequest) -> SiteAppModel:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    await app_of(services.database, site)
    application = services.actors.ref(SiteApp, str(site.id))
    await soon(application.ask(SiteApp.roll_back, context.caller, request.deployment))
    return await shown_app(context, site)
