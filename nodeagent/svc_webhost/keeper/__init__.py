"""Supervises the server's long-running programs where systemd does not: a process of its own that outlives the core.

Started as `python -I -S keeper/__main__.py DATA`, by the core's client (`launcher_keeper.py`) or by an init. It imports
the standard library only (a contract in pyproject.toml), so it stays below 15 MB and an update of the panel does not
have to end it.

How it works:

- The child process of a service waits until its state file is on disk, and executes the program only then. A program
  that runs is always recorded.
- The keeper keeps nothing in memory alone. If it is killed, its children go on; its successor finds them by process id
  and start time, watches them by pidfd, and takes the listening sockets back from them (pidfd_getfd(2)).
- All processes that a program started are in one group (`groups.py`), and are killed together.
- Only uid 0 may ask it, and its requests are typed: none is a command line for a shell.

Rejected:

- Two processes that accept from one socket while a service is replaced. systemd cannot do that with a unit, and
  programs that lock a folder or bind a port themselves could not either. The old process stops first; connections wait.
- State on a tmpfs. In the data folder it survives a reboot, and the keeper starts what ran before the core is up.
- A handler for SIGTERM that stops the services. SIGTERM ends the keeper as SIGKILL does: there is one way to end, and
  it is exercised all the time.
"""
