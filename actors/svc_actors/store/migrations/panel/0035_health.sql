-- Health of the server: what each check says now, and when that changed.

CREATE TABLE health_checks (
    name       text PRIMARY KEY,
    status     text NOT NULL CHECK (status IN ('ok', 'warning', 'critical', 'unknown')),
    message    text NOT NULL,
    value      double precision,
    since      timestamptz NOT NULL DEFAULT now(),
    checked_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE health_events (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT now(),
    "check"  text NOT NULL,
    before   text NOT NULL,
    status   text NOT NULL,
    message  text NOT NULL
);
CREATE INDEX health_events_at ON health_events (at);
