"""Sites, which visitors open on this server: each has an account, names and a status of its own."""
