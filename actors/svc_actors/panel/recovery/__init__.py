"""Recovery: the encrypted manifest of the server at its backup targets, and a server brought back from one."""
