"""The files of one site, touched by a process that can touch nothing else.

A helper is forked for a site with two descriptors: the site's root folder and a socket. It becomes the site's account,
confines itself to the root (`confine`), and only then reads its first request. So what a request, an archive or a
link inside of the site may name is bounded by the kernel, not by a check of a path's text. The package knows the
standard library alone: everything it needs is loaded before the fork, since afterwards it can open no module.
"""
