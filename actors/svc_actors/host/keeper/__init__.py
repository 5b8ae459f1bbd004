"""What holds the server's long-running programs where systemd does not: a process of its own that outlives the core.

Started as `python -I -S keeper/__main__.py DATA`, by the core's client (`launcher_keeper.py`) or by an init. It imports
the standard library alone, so that it stays small and that no update of ours has to end it.

Its theory of operation:

- A program's process is a child that waits until its state file is written, and only then executes the program: there
  is no moment at which a program runs and the disk does not know it.
- Nothing is remembered in the keeper alone. Killed, it leaves its children alive; its successor finds them by process
  id and start time, watches them by pidfd, and takes the listening sockets back from them (pidfd_getfd(2)).
- Everything that a program started is in a group (`groups.py`), and is ended as one.
- It obeys uid 0 alone, and its requests are typed: none is a command line for a shell.
"""
