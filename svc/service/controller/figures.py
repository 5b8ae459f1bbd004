"""The controller's figures at /metrics, besides those of its requests: docs/monitoring.md explains each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version

import trio

from svc.controller.census import CensusTaker
from svc.controller.services import Controller
from svc_actors.disk_guard import DiskGuard
from svc_actors.runtime import KindStatistics
from svc_actors.store import Database
from svc_http.app import App
from svc_http.certificates import Certificates
from svc_http.metrics import Figure, Labelled, Metrics
from svc_nodeagent.protocol import PROTOCOL_VERSION

LAG_PERIOD = 0.25
LAG_SAMPLES = 240
"""A minute of measurements, so that a lag shorter than the scrape interval is still seen."""


class LoopLag:
    """The lag of the event loop: how much later than requested a task wakes up."""

    def __init__(self) -> None:
        self._samples = [0.0] * LAG_SAMPLES

    @property
    def longest(self) -> float:
        """The longest lag of the last minute, in seconds."""
        return max(self._samples)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            for number in range(LAG_SAMPLES):
                due = trio.current_time() + LAG_PERIOD
                await trio.sleep_until(due)
                self._samples[number] = trio.current_time() - due


def watch_controller(
    app: App, services: Controller, certificates: Certificates, lag: LoopLag, disk: DiskGuard | None
) -> None:
    metrics = app.metrics
    _watch_process(metrics, services)
    _watch_database(metrics, services.database)
    _watch_fleet(metrics, services.database)
    metrics.watch(
        [
            Figure(
                "svc_event_loop_lag_seconds",
                "Longest delay of the event loop in the last minute.",
                lambda: lag.longest,
            ),
            Figure(
                "svc_certificate_expiry_timestamp_seconds",
                "End of a certificate that the API shows, in seconds since 1970.",
                lambda: {(name,): end.timestamp() for name, end in certificates.ends.items()},
                ("file",),
            ),
        ]
    )
    if disk is not None:
        _watch_disk(metrics, disk)


def _watch_process(metrics: Metrics, services: Controller) -> None:
    actors, gateway, events, tasks = services.actors, services.gateway, services.events, services.tasks

    def by_kind(read: Callable[[KindStatistics], int]) -> Callable[[], Labelled]:
        return lambda: {(name,): float(read(kind)) for name, kind in actors.statistics().items()}

    def ended() -> Mapping[tuple[str, ...], float]:
        return {(status.value,): float(number) for status, number in tasks.ended.items()}

    release = (version("svc"), str(PROTOCOL_VERSION))
    kind = ("kind",)
    metrics.watch(
        [
            Figure(
                "svc_build_info", "The release that runs: always 1.", lambda: {release: 1.0}, ("version", "protocol")
            ),
            Figure("svc_actors_live", "Actors in memory.", by_kind(lambda each: each.live), kind),
            Figure("svc_actor_messages_waiting", "Messages in mailboxes.", by_kind(lambda each: each.waiting), kind),
            Figure("svc_actor_crashes_total", "Crashes of actors.", by_kind(lambda each: each.crashes), kind),
            Figure("svc_nodes_connected", "Agents connected now.", lambda: float(len(gateway.online()))),
            Figure("svc_gateway_refused_total", "Connections of agents that were refused.", lambda: gateway.refused),
            Figure("svc_networks_applied_total", "Networks of machines applied.", lambda: services.networks.applied),
            Figure("svc_tasks_ended_total", "Tasks ended, by status.", ended, ("status",)),
            Figure(
                "svc_events_delivered_total",
                "Events given to the readers in this process.",
                lambda: events.statistics().delivered,
            ),
        ]
    )


def _watch_database(metrics: Metrics, database: Database) -> None:
    metrics.watch(
        [
            Figure(
                "svc_database_connections_in_use",
                "Connections that a request or a background loop holds.",
                lambda: database.statistics().in_use,
            ),
            Figure(
                "svc_database_connections_max",
                "Most connections that may be open, of all lanes.",
                lambda: database.statistics().size,
            ),
            Figure(
                "svc_database_waiting",
                "Requests and loops that wait for a connection.",
                lambda: database.statistics().waiting,
            ),
            Figure(
                "svc_database_exhausted_total",
                "Waits for a connection that timed out: each was answered with unavailable.",
                lambda: database.statistics().exhausted,
            ),
            Figure(
                "svc_database_connections_broken_total",
                "Connections that were lost.",
                lambda: database.statistics().broken,
            ),
            Figure(
                "svc_database_collisions_total",
                "Transactions that the database server rolled back in favour of another, and that were run again.",
                lambda: database.statistics().collided,
            ),
        ]
    )


def _watch_fleet(metrics: Metrics, database: Database) -> None:
    taker = CensusTaker(database)
    metrics.watch(
        [
            Figure("svc_database_up", "Whether the database answered this scrape.", lambda: taker.database_up),
            Figure("svc_nodes", "Nodes, by the state that is shown.", lambda: taker.census.nodes, ("state",)),
            Figure(
                "svc_machines", "Machines, by the status that is shown.", lambda: taker.census.machines, ("status",)
            ),
            Figure("svc_tasks_open", "Tasks that have not ended.", lambda: taker.census.tasks, ("operation", "status")),
            Figure(
                "svc_task_oldest_seconds",
                "Age of the oldest task of an operation that has not ended.",
                lambda: taker.census.task_ages,
                ("operation",),
            ),
            Figure(
                "svc_alerts_open", "The service's own alerts, open now.", lambda: taker.census.alerts, ("severity",)
            ),
            Figure("svc_mails_waiting", "Mails to be delivered, by kind.", lambda: taker.census.mails, ("kind",)),
            Figure(
                "svc_mail_oldest_seconds",
                "Age of the oldest mail of a kind that waits.",
                lambda: taker.census.mail_ages,
                ("kind",),
            ),
            Figure(
                "svc_pool_addresses",
                "Addresses (IPv6: sub-prefixes) of an enabled pool.",
                lambda: taker.census.pool_sizes,
                ("network", "pool"),
            ),
            Figure(
                "svc_pool_addresses_free",
                "Free addresses of an enabled pool.",
                lambda: taker.census.pool_free,
                ("network", "pool"),
            ),
        ],
        prepare=taker.take,
    )


def _watch_disk(metrics: Metrics, disk: DiskGuard) -> None:
    metrics.watch(
        [
            Figure("svc_database_disk_size_bytes", "Size of the database's disk.", lambda: disk.space.size),
            Figure("svc_database_disk_free_bytes", "Free space of the database's disk.", lambda: disk.space.free),
            Figure(
                "svc_database_disk_reserve_bytes",
                "Space held in reserve for when the disk is full.",
                lambda: disk.reserve,
            ),
            Figure(
                "svc_database_disk_full", "Whether changes are refused because the disk is full.", lambda: disk.full
            ),
        ]
    )
