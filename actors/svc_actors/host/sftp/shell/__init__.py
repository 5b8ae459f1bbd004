"""Shells of sites: what OpenSSH starts for a login of the kind `shell` runs where all programs of its site run.

    sshd (root)            authenticates, and makes the terminal
      enter.py (site)      all that sshd executes, locked into a folder with nothing of anybody's: hands its terminal,
                           or pipes, to the service of the login, and ends as the program ends
    serve.py (root)        the service of the login, in the control group that bounds it: starts the program
      enter_site.py        becomes the account in its view of the server
        bash (site)

So no program has the rights of another user at any time but by its own parent, and whatever a login has started is
ended by stopping one service.
"""
