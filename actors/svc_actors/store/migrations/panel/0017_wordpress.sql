-- What a site of the type wordpress was ordered with, and whether it was installed.
CREATE TABLE wordpress_sites (
    site_id      uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    title        text NOT NULL,
    -- Empty for English, else as WordPress names its languages: de_DE.
    locale       text NOT NULL DEFAULT '',
    admin_email  text NOT NULL,
    -- By what the first administrator is called in WordPress.
    admin_login  text NOT NULL,
    -- Since then nothing begins it anew: it may have content. NULL while it is being made.
    installed_at timestamptz
);
