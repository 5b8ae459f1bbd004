-- Programs that answer for paths without a file, besides /index.php for the whole site.
CREATE TABLE site_front_controllers (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id      uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    path         text NOT NULL,
    php_file      text NOT NULL,
    path_info    boolean NOT NULL,
    parameter    text,
    serves_files boolean NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    UNIQUE (site_id, path),
    CHECK (parameter IS NULL OR NOT path_info)
);
