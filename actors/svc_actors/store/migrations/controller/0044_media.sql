-- What is in a machine's CD-ROM drive, and whether it boots that before its disk.
ALTER TABLE vms ADD COLUMN iso_image_id uuid REFERENCES images;
ALTER TABLE vms ADD COLUMN iso_boot boolean NOT NULL DEFAULT false;
CREATE INDEX vms_iso ON vms (iso_image_id) WHERE iso_image_id IS NOT NULL;
