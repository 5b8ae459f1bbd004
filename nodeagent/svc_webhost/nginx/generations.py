"""Changes nginx's configuration in generations, each tested and proven before it counts.

A generation is written next to the served one, its changes are tested, a rename makes it current, and a reload loads
it. It counts only once nginx itself answers with its number (nginx refuses a reload silently) and the changed hosts
answer as they should. Otherwise the previous one becomes current again. Invariants:

- whatever fails, and wherever the process ends, nginx serves one complete generation, and `current` names one in which
  every site was tested, now or when it was served;
- a site that nginx refuses does not keep others from being changed: it stays as it was. An unchanged site that breaks
  the others (its certificate is gone) is left out and reported, but never for an error that the served generation does
  not have;
- a change reads the certificate of previews once, and the main file names it for as long as the file of any site needs
  one (`needs_preview_certificate`);
- the next generation is based on the served one, and never on one that was written but not proven.

Why: docs/decisions/0041-web-server-generations.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio

from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Launcher, LauncherError
from svc_webhost.nginx import probe, program
from svc_webhost.nginx.access import hold_passwords
from svc_webhost.nginx.brotli import MODULE, Replaced, is_unusable, state_of
from svc_webhost.nginx.logs import rotate
from svc_webhost.nginx.model import SiteServer
from svc_webhost.nginx.render import Ports, needs_preview_certificate, render_main, render_site, site_logs
from svc_webhost.nginx.tree import Tree
from svc_webhost.preview_certificate import (
    PreviewCertificate,
    certificate_named_in,
    forget_former_domains,
    preview_certificate,
)

RELOAD_SECONDS: Final = 30.0
"""The time for a reload; with a thousand sites it takes one second."""
POLL_SECONDS: Final = 0.02
STEADY_SECONDS: Final = 0.25
"""The master ends the old workers 100 ms after it has started the new ones, and until then both accept connections."""
PROBE_FOR_SECONDS: Final = 5.0
PROBES_AT_ONCE: Final = 16


class NginxError(Exception):
    """Nothing could be changed. The previous configuration is still served, if nginx runs at all."""


class _NotServedError(Exception):
    """A tested generation was not loaded."""


@dataclass(frozen=True)
class _Rendered:
    """A site's file; None removes it."""

    text: str | None
    site: SiteServer | None = None
    fingerprint: str | None = None
    of_previews: str | None = None
    """The fingerprint of the certificate that its previews show."""


_GONE: Final = _Rendered(None)


class WebServing(Protocol):
    """Changes the sites that are served; other tests use a fake."""

    async def start(self, sites: Iterable[SiteServer]) -> dict[int, str]: ...

    async def apply(self, changes: Mapping[int, SiteServer | None]) -> dict[int, str]: ...

    async def difference(self, site: SiteServer) -> str | None:
        """Differences between nginx's current configuration and the site's desired one, in words; None: there are none.
        Changes nothing. Raises `NginxError` if the site cannot be rendered, or the state is unknown."""
        ...

    async def rotate_logs(self) -> int: ...


class Generations:
    """One caller at a time: callers must not overlap."""

    def __init__(
        self,
        folders: HostFolders,
        launcher: Launcher,
        ports: Ports,
        *,
        worker_user: str = "www-data",
        brotli: Path = MODULE,
    ) -> None:
        """`brotli`: where nginx's module is, if it is installed."""
        self._folders = folders
        self._launcher = launcher
        self._ports = ports
        self._worker_user = worker_user
        self._tree = Tree(folders.nginx)
        self._brotli_file = brotli
        self._brotli: Path | None = None
        """The module, if nginx can load it."""
        self._modules: Replaced | None = None
        """Those of the last test with the module."""
        self._proven: int | None = None
        """The only generation with which nginx has answered for a while."""

    async def start(self, sites: Iterable[SiteServer]) -> dict[int, str]:
        """Serve exactly these sites. If nginx already does, nothing is written or reloaded. See `apply`."""
        await trio.to_thread.run_sync(self._prepare)
        await self._try_modules()
        previews = await trio.to_thread.run_sync(preview_certificate, self._folders)
        wanted, refused = await self._render({site.number: site for site in sites}, previews)
        base, served = await self._base()
        there = await trio.to_thread.run_sync(self._tree.sites, base)
        changes = {number: file for number, file in wanted.items() if there.get(number) != file.text}
        changes |= dict.fromkeys(there.keys() - wanted.keys() - refused.keys(), _GONE)
        named = await trio.to_thread.run_sync(self._named, base, changes, previews)
        main = None if base is None else self._main(base, named)
        anew = await trio.to_thread.run_sync(self._tree.read_main, base) != main
        if changes or not served or anew:
            refused |= await self._apply(changes, previews, anew=anew)
        await trio.to_thread.run_sync(self._forget_former_domains)
        return refused

    async def apply(self, changes: Mapping[int, SiteServer | None]) -> dict[int, str]:
        """Serve these sites, by number, as given; None stops serving one.

        Returns the reason for each site that is not served as requested: requested ones, which stay as they were, and
        others that had to be left out. All other changes are served when this returns. Raises `NginxError` if none is.
        Call it without changes, too: it starts a stopped nginx again.
        """
        await trio.to_thread.run_sync(self._prepare)
        anew = await self._try_modules()
        previews = await trio.to_thread.run_sync(preview_certificate, self._folders)
        rendered, refused = await self._render(changes, previews)
        refused |= await self._apply(rendered, previews, anew=anew)
        await trio.to_thread.run_sync(self._forget_former_domains)
        return refused

    async def difference(self, site: SiteServer) -> str | None:
        if await self._served() is None:
            return "The web server does not run, or does not say what it serves."

        def compare() -> str | None:
            current = self._tree.current()
            if current is None:
                return "The web server has no configuration."
            previews = preview_certificate(self._folders)
            if self._tree.read_main(current) != self._main(current, self._named(current, {}, previews)):
                return "The main configuration of the web server was changed by others."
            there = self._tree.site(current, site.number)
            if there is None:
                return "The web server has no configuration of the site."
            same = there == self._file(site, previews).text
            return None if same else "The web server's configuration of the site was changed."

        try:
            return await trio.to_thread.run_sync(compare)
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} of the web server's configuration is gone."
        except (OSError, ValueError) as error:
            words = str(error).replace(f"{self._folders.data}/", "")
            raise NginxError(f"The configuration of the site cannot be compared: {words}") from error

    async def rotate_logs(self) -> int:
        """Rotate logs that have grown large, with one reload for all. Returns how many. Raises `NginxError` if nginx
        did not reload: until the next call it keeps writing to the renamed files."""
        rotated = await trio.to_thread.run_sync(self._rotate_logs)
        current = await trio.to_thread.run_sync(self._tree.current)
        if rotated and current is not None and await self._served() is not None:
            try:
                await self._serve(current, reload=True)
            except _NotServedError as error:
                raise NginxError(f"The web server did not reopen its logs: {error}") from error
        return rotated

    async def _try_modules(self) -> bool:
        """Find out whether nginx can load the module for brotli. Returns whether that has changed."""
        found = await trio.to_thread.run_sync(state_of, self._brotli_file, Path(program.PROGRAM))
        if found == self._modules:
            return False
        before, self._brotli = self._brotli, None
        if found[0] is not None:
            text = render_main(0, self._folders, self._ports, self._worker_user, self._brotli_file)
            try:
                main = await trio.to_thread.run_sync(self._tree.write_trial, {}, text)
            except OSError as error:
                raise NginxError(f"The web server's configuration cannot be written: {error.strerror}.") from error
            refused = (await program.test(self._folders, main)).refused
            if refused is None:
                self._brotli = self._brotli_file
            elif not is_unusable(self._brotli_file, refused):
                # The test says nothing of the module, so it is repeated with the next change.
                return before is not None
        self._modules = found
        return self._brotli != before

    async def _apply(
        self, changes: dict[int, _Rendered], previews: PreviewCertificate | None, *, anew: bool = False
    ) -> dict[int, str]:
        """`previews`: the certificate with which the changes were rendered. `anew`: write a new generation even without
        changes of sites, since the main file is another one."""
        pending, refused = dict(changes), dict[int, str]()
        base, served = await self._base()
        while pending or anew or not served:
            bad = await self._attempt(base, pending, previews, await self._served())
            if not bad:
                return refused
            refused |= bad
            for number in bad:
                if pending.pop(number, _GONE).text is None:
                    pending[number] = _GONE
        return refused

    async def _attempt(
        self,
        base: int | None,
        pending: Mapping[int, _Rendered],
        previews: PreviewCertificate | None,
        running: int | None,
    ) -> dict[int, str]:
        """Serve `base` with these changes, while nginx serves `running`. If that fails, returns the reason by site, and
        `base` is served."""
        reload = running is not None
        named = await trio.to_thread.run_sync(self._named, base, pending, previews)
        main = partial(self._main, previews=named)
        generation = await trio.to_thread.run_sync(self._write, base, pending, main)
        if base is None or running != base:
            tested = await program.test(self._folders, self._tree.main_of(generation))
        else:
            tested = await self._test_changes(base, pending, main(0))
        if tested.refused is not None:
            await trio.to_thread.run_sync(self._tree.discard, generation)
            return await self._culprits(base, pending, main(0)) or _all_of(pending, tested.refused)
        if taken := _conflicting(pending, tested.conflicts):
            await trio.to_thread.run_sync(self._tree.discard, generation)
            return taken
        await trio.to_thread.run_sync(self._tree.switch, generation)
        try:
            await self._serve(generation, reload=reload)
            bad = await self._problems(pending)
        except _NotServedError as error:
            await self._return_to(base, generation)
            if bad := await self._culprits(base, pending, main(0)):
                return bad
            if not reload:
                raise NginxError(f"The web server does not start: {error}") from error
            return _all_of(pending, str(error))
        if bad:
            await self._return_to(base, generation)
            return bad
        await trio.to_thread.run_sync(self._tree.prune, generation, base)
        return {}

    async def _test_changes(self, base: int, pending: Mapping[int, _Rendered], main: str) -> program.ConfigurationTest:
        """Test only the changed sites, since nginx has accepted all others and serves them from `base`. A test of a
        thousand sites takes as long as their reload, and nearly all of this time is spent on reading certificates and
        keys. Errors that this test misses (a site that broke without being changed, or too many names) make the reload
        fail, and then all sites are tested."""

        def prepare() -> tuple[Path, frozenset[str]]:
            texts = {number: file.text for number, file in pending.items() if file.text is not None}
            return self._tree.write_trial(texts, main), self._tree.names(base, without=pending.keys())

        try:
            trial, taken = await trio.to_thread.run_sync(prepare)
        except OSError as error:
            raise NginxError(f"The web server's configuration cannot be written: {error.strerror}.") from error
        tested = await program.test(self._folders, trial)
        return replace(tested, conflicts=tested.conflicts | taken)

    async def _base(self) -> tuple[int | None, bool]:
        """The generation to build on, and whether nginx serves that generation and would start with it."""
        current = await trio.to_thread.run_sync(self._tree.current)
        there = await trio.to_thread.run_sync(self._tree.generations)
        running = await self._served()
        if running is None and current is not None:
            # nginx was stopped, or is just starting. It can be started with the current configuration, so no new
            # generation is needed.
            try:
                await self._serve(current, reload=False)
                running = current
            except _NotServedError:
                return current, False
        if running is not None and self._proven == current:
            # The answer may come from a worker of an earlier generation that has not ended yet. A generation based on
            # that one would undo the changes of the current one.
            return current, True
        if running in there:
            return running, running == current
        return current, False

    async def _serve(self, generation: int, *, reload: bool) -> None:
        """Make nginx load the current generation. Raises `_NotServedError` with nginx's words."""
        logs = _Tail(self._folders.nginx_log), _Tail(self._folders.nginx_output)
        try:
            if not (await self._launcher.status(program.NGINX)).running:
                # The service may be waiting after repeated failures with the previous configuration; a stop ends the
                # wait.
                await self._launcher.stop(program.NGINX)
            await self._launcher.ensure(program.service(self._folders, self._tree.main, self._ports, self._worker_user))
            if reload:
                await self._launcher.reload(program.NGINX)
        except LauncherError as error:
            raise _NotServedError(str(error)) from error
        since: float | None = None
        with trio.move_on_after(RELOAD_SECONDS):
            while since is None or trio.current_time() < since + STEADY_SECONDS:
                if await program.served_generation(self._folders) == generation:
                    since = since or trio.current_time()
                else:
                    since = None
                    if said := program.words("".join(log.read() for log in logs), self._folders):
                        raise _NotServedError(said)
                await trio.sleep(POLL_SECONDS)
            self._proven = generation
            return
        raise _NotServedError(f"nginx did not load its configuration within {RELOAD_SECONDS:g} seconds")

    async def _return_to(self, base: int | None, generation: int) -> None:
        """Serve the previous configuration. Raises `NginxError` if even that fails."""
        if base is None:
            await self._launcher.stop(program.NGINX)
            await trio.to_thread.run_sync(self._tree.withdraw, generation)
            return
        await trio.to_thread.run_sync(self._tree.switch, base)
        try:
            await self._serve(base, reload=await self._served() is not None)
        except _NotServedError as error:
            raise NginxError(f"The web server does not accept its previous configuration either: {error}") from error
        await trio.to_thread.run_sync(self._tree.discard, generation)

    async def _culprits(self, base: int | None, pending: Mapping[int, _Rendered], main: str) -> dict[int, str]:
        """The sites that nginx refuses even if it gets only that one: of the changed sites, or if none of these is
        refused, of all others. Raises `NginxError` if nginx refuses the main file itself: then no site is to blame."""
        if (refused := await self._try({}, main)) is not None:
            raise NginxError(f"The web server rejected its configuration: {refused}")
        changed = {number: file.text for number, file in pending.items() if file.text is not None}
        if bad := await self._refused(changed, main):
            return bad
        served = await trio.to_thread.run_sync(self._tree.sites, base)
        # With the main file that they are served with: what only the new one makes of them is no error of theirs.
        before = await trio.to_thread.run_sync(self._tree.read_main, base)
        if before is None or await self._try({}, before) is not None:
            before = main
        unchanged = {number: text for number, text in served.items() if number not in pending}
        return await self._refused(unchanged, before)

    async def _refused(self, sites: Mapping[int, str], main: str) -> dict[int, str]:
        """The sites that nginx refuses, found by bisection: each half is tested without the other sites."""
        if not sites or (refused := await self._try(sites, main)) is None:
            return {}
        if len(sites) == 1:
            return dict.fromkeys(sites, refused)
        numbers = sorted(sites)
        half = len(numbers) // 2
        bad: dict[int, str] = {}
        for part in (numbers[:half], numbers[half:]):
            bad |= await self._refused({number: sites[number] for number in part}, main)
        return bad

    async def _try(self, sites: Mapping[int, str], main: str) -> str | None:
        """Why nginx refuses these sites with this main file; None: it takes them."""
        trial = await trio.to_thread.run_sync(self._tree.write_trial, sites, main)
        return (await program.test(self._folders, trial)).refused

    async def _problems(self, pending: Mapping[int, _Rendered]) -> dict[int, str]:
        """Problems with the serving of the changed sites; those that pass in time do not count."""
        limit = trio.CapacityLimiter(PROBES_AT_ONCE)
        until = trio.current_time() + PROBE_FOR_SECONDS
        problems: dict[int, str] = {}

        async def look(number: int, site: SiteServer, file: _Rendered) -> None:
            while True:
                async with limit:
                    problem = await probe.problem_of(site, self._ports, file.fingerprint, file.of_previews)
                if problem is None:
                    return
                if trio.current_time() > until:
                    problems[number] = problem
                    return
                await trio.sleep(POLL_SECONDS)

        async with trio.open_nursery() as nursery:
            for number, file in pending.items():
                if file.site is not None:
                    nursery.start_soon(look, number, file.site, file)
        return problems

    async def _render(
        self, sites: Mapping[int, SiteServer | None], previews: PreviewCertificate | None
    ) -> tuple[dict[int, _Rendered], dict[int, str]]:
        """The files, and the reasons for missing ones."""

        def render() -> tuple[dict[int, _Rendered], dict[int, str]]:
            files, refused = dict[int, _Rendered](), dict[int, str]()
            for number, site in sites.items():
                try:
                    files[number] = _GONE if site is None else self._file(site, previews)
                    # The password files are written before the site is served with them: a protected path must never be
                    # open to everybody.
                    if site is not None:
                        hold_passwords(self._folders, site, self._worker_user)
                except (ValueError, OSError) as error:
                    refused[number] = str(error).replace(f"{self._folders.data}/", "")
            return files, refused

        return await trio.to_thread.run_sync(render)

    def _file(self, site: SiteServer, previews: PreviewCertificate | None) -> _Rendered:
        shown = None if site.certificate is None else probe.fingerprint(site.certificate)
        text = render_site(site, self._folders, self._ports, shown, previews)
        of_previews = None if previews is None or not previews.is_for(site.previews) else previews.fingerprint
        return _Rendered(text, site, shown, of_previews)

    def _named(
        self, base: int | None, pending: Mapping[int, _Rendered], previews: PreviewCertificate | None
    ) -> PreviewCertificate | None:
        """The certificate of previews for the main file that goes with `base` and these changes. Blocks."""
        if previews is not None or base is None:
            return previews
        before = certificate_named_in(self._folders, self._tree.read_main(base) or "")
        if before is None:
            return None
        unchanged = (text for number, text in self._tree.sites(base).items() if number not in pending)
        return before if any(map(needs_preview_certificate, unchanged)) else None

    def _forget_former_domains(self) -> None:
        """Remove keys of former preview domains; call it while nginx serves the current generation."""
        if (main := self._tree.read_main(self._tree.current())) is not None:
            forget_former_domains(self._folders, main)

    def _write(self, base: int | None, pending: Mapping[int, _Rendered], main: Callable[[int], str]) -> int:
        """Returns the number of the new generation."""
        generation = max((0, *self._tree.generations())) + 1
        texts = {number: file.text for number, file in pending.items()}
        try:
            for number in self._tree.write(generation, base, texts, main(generation)):
                site_logs(self._folders, number).mkdir(mode=0o750, exist_ok=True)
        except OSError as error:
            self._tree.discard(generation)
            raise NginxError(f"The web server's configuration cannot be written: {error.strerror}.") from error
        return generation

    def _rotate_logs(self) -> int:
        if not self._folders.site_logs.is_dir():
            return 0
        return sum(rotate(folder) for folder in (self._folders.nginx, *self._folders.site_logs.iterdir()))

    def _main(self, generation: int, previews: PreviewCertificate | None) -> str:
        return render_main(generation, self._folders, self._ports, self._worker_user, self._brotli, previews)

    def _prepare(self) -> None:
        """Create the folders. Workers must reach the challenges and their temporary files. No account can list the
        sites or read their configuration."""
        folders = self._folders
        for folder, mode in (
            (folders.nginx, 0o711),
            (folders.nginx / "temporary", 0o711),
            (folders.site_logs, 0o711),
            (folders.run, 0o755),
            (folders.challenges, 0o755),
        ):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)
        # Created here with its mode. Otherwise the launcher would create it, without the umask of `program.command`,
        # which applies only to files that nginx itself creates.
        folders.nginx_output.touch(mode=0o640)
        self._tree.prepare()

    async def _served(self) -> int | None:
        try:
            running = (await self._launcher.status(program.NGINX)).running
        except LauncherError as error:
            raise NginxError(f"It could not be determined whether the web server runs: {error}") from error
        # Asked only if nginx runs: its status socket still exists when it has ended, but nothing answers there.
        return await program.served_generation(self._folders) if running else None


class _Tail:
    """The part of a log that is written from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = path.stat().st_size if path.exists() else 0

    def read(self) -> str:
        if not self._path.exists():
            return ""
        with self._path.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")


def _all_of(pending: Mapping[int, _Rendered], words: str) -> dict[int, str]:
    """Blame every site that was to be changed. Raises `NginxError` if there is none."""
    changed = [number for number, file in pending.items() if file.text is not None]
    if not changed:
        raise NginxError(f"The web server rejected its configuration: {words}")
    return dict.fromkeys(changed, words)


def _conflicting(pending: Mapping[int, _Rendered], names: frozenset[str]) -> dict[int, str]:
    """Sites with a name that another site has: of two such sites nginx would serve only the first that it reads."""
    found: dict[int, str] = {}
    for number, file in pending.items():
        if file.site is not None and (taken := names.intersection(file.site.hosts)):
            found[number] = f"another site answers for {', '.join(sorted(taken))}"
    return found
