-- What an application finds in its environment. Values are sealed, each for its site and its name.
CREATE TABLE app_variables (
    site_id      uuid NOT NULL REFERENCES site_apps ON DELETE CASCADE,
    name         text NOT NULL,
    sealed_value bytea NOT NULL,
    set_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (site_id, name)
);
