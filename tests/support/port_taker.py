"""A program of a tenant that tries to take a port in every way there is, until its standard input ends.

    python port_taker.py PORT

It tells how often it tried, and what it got, as JSON."""

from __future__ import annotations

import json
import select
import socket
import sys

ADDRESSES = ("0.0.0.0", "127.0.0.1", "::", "::1")
OPTIONS = (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT)


def main(port: int) -> None:
    tried, taken = 0, set[str]()
    print("tries", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for address in ADDRESSES:
            for option in OPTIONS:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                with socket.socket(family) as taking:
                    if option is not None:
                        taking.setsockopt(socket.SOL_SOCKET, option, 1)
                    if family == socket.AF_INET6:
                        taking.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    try:
                        taking.bind((address, port))
                        taking.listen()
                        taken.add(f"{address} {option}")
                    except OSError:
                        pass
        tried += 1
    print(json.dumps({"tried": tried, "taken": sorted(taken)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
