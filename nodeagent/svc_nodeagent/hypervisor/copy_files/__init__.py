"""Single files of a machine's copy, read by a small system in a QEMU of its own, and by nothing on the host."""
