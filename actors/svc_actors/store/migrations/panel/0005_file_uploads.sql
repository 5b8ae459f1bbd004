-- Uploads that come in parts: every request of the API is at most 1 MB. The parts lie in a file of the site's that is no
-- part of it yet; here is where that file shall go, and what of it has come.
CREATE TABLE file_uploads (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id    uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    path       text NOT NULL,
    size       bigint NOT NULL CHECK (size >= 0),
    -- A file that is there may be replaced.
    replace    boolean NOT NULL,
    -- Which bytes have come. Parts may overlap and repeat: a range is added to what is there.
    received   int8multirange NOT NULL DEFAULT '{}',
    status     text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'finished')),
    -- Of the whole, once it is finished; a repeated call to finish it is answered by this.
    sha256     text,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- When something came last. An upload that nobody continues is removed.
    touched_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((status = 'finished') = (sha256 IS NOT NULL))
);
CREATE INDEX file_uploads_site ON file_uploads (site_id, created_at, id);
CREATE INDEX file_uploads_touched ON file_uploads (touched_at);
