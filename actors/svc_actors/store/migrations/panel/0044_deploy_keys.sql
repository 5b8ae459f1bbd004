-- What opens private git repositories for deployments of an application: a key for each host that has some.
CREATE TABLE app_deploy_keys (
    id                 uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id            uuid NOT NULL REFERENCES site_apps ON DELETE CASCADE,
    host               text NOT NULL,
    port               integer NOT NULL,
    -- That host's own, as in known_hosts.
    host_key           text NOT NULL,
    public_key         text NOT NULL,
    sealed_private_key bytea NOT NULL,
    made_at            timestamptz NOT NULL DEFAULT now(),
    UNIQUE (site_id, host, port)
);
