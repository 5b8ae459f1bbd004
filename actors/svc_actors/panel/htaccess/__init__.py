"""Handles .htaccess files of sites, which nginx does not read; the confined helper judges them."""
