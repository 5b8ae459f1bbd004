"""The file manager: files, archives and uploads."""
