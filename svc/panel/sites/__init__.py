"""Sites: domains, paths, PHP and logs, and who may use them."""
