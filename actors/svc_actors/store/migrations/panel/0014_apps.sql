-- Applications of sites of the type app: an HTTP server of the customer's own.
CREATE TABLE site_apps (
    site_id        uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    runtime        text NOT NULL CHECK (runtime IN ('python', 'node')),
    -- Between a Python application and its server; of node it says nothing.
    interface      text NOT NULL CHECK (interface IN ('wsgi', 'asgi')),
    -- module:callable, or of node a script beneath `folder`, which is beneath the site's home.
    entry          text NOT NULL,
    folder         text NOT NULL,
    -- Answered with less than 500 before visitors come to a release.
    health_path    text NOT NULL,
    -- Each start is a release with a number of its own.
    last_release   integer NOT NULL DEFAULT 0,
    -- That shall run; NULL: none.
    wanted_release integer,
    -- That visitors come to.
    live_release   integer,
    -- Why the last start failed.
    problem        text,
    CHECK (wanted_release <= last_release AND live_release <= last_release)
);
