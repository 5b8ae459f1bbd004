"""Reads Apache's files from sites of other hosts: .htaccess files, and password files.

The standard library alone: the confined process that reads an archive uses these modules too (`confined.survey`).
"""
