-- Alerts by webhook (docs/webhooks.md): who is told, what there is to tell, and what became of it.

CREATE TABLE webhook_endpoints (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    url           text NOT NULL,
    -- The least severity of the alerts that it is told.
    least         text NOT NULL CHECK (least IN ('critical', 'warning')),
    -- While it is not, nothing new is written for it, and what waits keeps waiting.
    enabled       boolean NOT NULL DEFAULT true,
    -- Failures before count no more.
    enabled_at    timestamptz NOT NULL,
    sealed_secret bytea NOT NULL,
    last_four     text NOT NULL CHECK (length(last_four) = 4),
    created_at    timestamptz NOT NULL DEFAULT now(),
    rotated_at    timestamptz
);

-- Which alerts a receiver was told of, as how severe and whether as acknowledged. The row goes when it was told that the
-- alert has closed.
CREATE TABLE webhook_alerts (
    endpoint_id  uuid NOT NULL REFERENCES webhook_endpoints ON DELETE CASCADE,
    alert_id     uuid NOT NULL REFERENCES alerts ON DELETE CASCADE,
    severity     text NOT NULL,
    acknowledged boolean NOT NULL,
    PRIMARY KEY (endpoint_id, alert_id)
);
CREATE INDEX webhook_alerts_alert ON webhook_alerts (alert_id);

CREATE TABLE webhook_events (
    id    uuid PRIMARY KEY,
    event text NOT NULL,
    at    timestamptz NOT NULL,
    -- The bytes that every attempt sends.
    body  bytea NOT NULL
);
CREATE INDEX webhook_events_at ON webhook_events (at);

CREATE TABLE webhook_deliveries (
    -- What the receiver tells repeats by: the same in all attempts, also in those of a replay.
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    endpoint_id     uuid NOT NULL REFERENCES webhook_endpoints ON DELETE CASCADE,
    event_id        uuid NOT NULL REFERENCES webhook_events,
    status          text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'retrying', 'failed')),
    -- Those that have an outcome. One that a crash cut short is not counted, and is made again.
    attempts        integer NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL,
    next_attempt_at timestamptz,
    -- Of the last attempt: when its outcome was there, how long it took, what the receiver answered, or why it did not.
    attempted_at    timestamptz,
    duration_ms     integer,
    response_status integer,
    error           text,
    CHECK ((status IN ('pending', 'retrying')) = (next_attempt_at IS NOT NULL))
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
CREATE INDEX webhook_deliveries_history ON webhook_deliveries (endpoint_id, created_at, id);
CREATE INDEX webhook_deliveries_of_event ON webhook_deliveries (event_id);
