"""Sites: what visitors open on this server, each with an account, names and a state of its own."""
