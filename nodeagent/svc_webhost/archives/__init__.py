"""Reads what an archive of another host holds, from its names and small files: one module per format, one model for
all.

The standard library alone: this runs in the confined process that reads the archive (`confined.survey`). An archive is
a stranger's data: nothing of it is run, and unreadable parts become items that are left out.
"""
