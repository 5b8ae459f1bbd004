"""Serve a site's Python application on the socket that it inherits: `serve_python.py wsgi|asgi MODULE:CALLABLE`

Started by Debian's Python as the site's account, in the folder of the application. Packages in `venv/` there take
precedence over Debian's. The servers are Debian's gunicorn and uvicorn. The variables of the application are in a file
(apps/model.py).
"""

from __future__ import annotations

import glob
import json
import os
import site
import sys
from importlib import import_module

SOCKET = 3
"""The descriptor at which gunicorn expects an inherited socket, as in sd_listen_fds(3)."""


def main(interface: str, entry: str) -> None:
    held = int(os.environ.pop("SVC_APP_SOCKET"))
    if held != SOCKET:
        os.dup2(held, SOCKET)
    with open(os.environ.pop("SVC_APP_VARIABLES")) as file:
        os.environ.update(json.load(file))
    folder = os.getcwd()
    # The application's packages come before the system's, so that it gets the versions that it requires.
    before = list(sys.path[1:])
    sys.path[:] = [folder]
    for packages in glob.glob(os.path.join(folder, "venv", "lib", "python3*", "site-packages")):
        site.addsitedir(packages)
    sys.path.extend(path for path in before if path not in sys.path)
    # Trusted from every address, because only the web server can connect, and it sets the visitor's address.
    os.environ["FORWARDED_ALLOW_IPS"] = "*"
    if interface == "asgi":
        import_module("uvicorn").run(entry, fd=SOCKET, proxy_headers=True, forwarded_allow_ips="*", access_log=False)
    else:
        # As if systemd had passed the socket: gunicorn then does not remove the socket when it ends.
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
        # One worker process: a second one might load the code only after the first has answered the probe, when the
        # files may be different ones.
        options = ["--workers=1", "--threads=16", "--timeout=300", "--graceful-timeout=25", "--worker-tmp-dir=/dev/shm"]
        sys.argv = ["gunicorn", *options, entry]
        import_module("gunicorn.app.wsgiapp").run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
