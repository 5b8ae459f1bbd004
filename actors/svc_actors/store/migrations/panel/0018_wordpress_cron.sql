-- Whether a schedule of the site was made for WordPress's own cron: it is made once, and is its owner's from then on.
ALTER TABLE wordpress_sites ADD COLUMN cron_scheduled boolean NOT NULL DEFAULT false;
