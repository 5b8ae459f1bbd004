-- The image that the disk of a machine stands on that is installed from an ISO: a MiB of zeros, which the controller keeps
-- and nodes fetch as any image. So every disk stands on an image, and what moves, copies or grows one knows no exception.
-- No caller sees it, and no custom image can take its slug.

ALTER TABLE images DROP CONSTRAINT images_kind_check;
ALTER TABLE images ADD CONSTRAINT images_kind_check CHECK (kind IN ('disk', 'iso', 'rescue', 'empty'));

INSERT INTO images (id, slug, name, os_family, distribution, release, login_user, format, source, digest_algorithm, digest,
                    size_bytes, custom, enabled, kind)
VALUES ('00000000-0000-0000-0000-000000000001', 'empty disk', 'Empty disk', 'linux', 'none', '1', 'root', 'raw', 'file',
        'sha256', '30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58', 1048576, false, false, 'empty');
