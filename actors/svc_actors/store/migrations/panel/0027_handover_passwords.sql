-- One password a handover for the database of a WordPress, however often it is tried. Whoever has set another one since
-- keeps it.
ALTER TABLE site_handovers ADD COLUMN sealed_wordpress_password bytea;
