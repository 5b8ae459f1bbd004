"""What becomes of a site's .htaccess files, which nginx does not read: as the confined helper judges them."""
