-- When an administrator said that the node will not come back. Its state stays `offline`: what its host does is not known.
ALTER TABLE nodes ADD COLUMN lost_at timestamptz;
