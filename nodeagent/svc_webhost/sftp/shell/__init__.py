"""Shells of sites: the program of a login of kind `shell` runs where all programs of its site run.

    sshd (root)            authenticates, and creates the terminal
      enter.py (site)      all that sshd executes, in a folder without anybody's files: passes its terminal, or pipes,
                           to the service of the login, and ends as the program ends
    serve.py (root)        the service of the login, in the control group that limits it: starts the program
      enter_site.py        becomes the account in its view of the server
        bash (site)

So no program ever has another user's rights except through its own parent, and stopping one service ends everything
that a login has started.
"""
