-- What an image's file is for, and since when a machine boots the rescue system instead of its own disk.
ALTER TABLE images ADD COLUMN kind text NOT NULL DEFAULT 'disk' CHECK (kind IN ('disk', 'iso', 'rescue'));
ALTER TABLE vms ADD COLUMN rescue_since timestamptz;
