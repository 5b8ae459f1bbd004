"""File access for one site, in a process that can access nothing else.

A helper is forked for a site with two descriptors: the site's root folder and a socket. It becomes the site's account,
confines itself to the root (`confine`), and only then reads its first request. So the kernel, and not a check of path
names, limits what a request, an archive or a link inside of the site can reach. The package uses the standard library
alone, and loads everything before the fork, since afterwards it can open no module.

Why: docs/decisions/0018-hostile-text-in-confined-processes.md.
"""
