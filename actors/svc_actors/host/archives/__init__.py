"""What an archive of another host holds, read from its names and its small files: a module a format, one model for all.

The standard library alone: this runs in the confined process that reads the archive (`confined.survey`). What stands in
an archive is data of a stranger; nothing of it is run, and what cannot be read becomes an item that is left out.
"""
