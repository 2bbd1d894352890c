"""The ``selfdraft`` command.

``main`` holds the app; each command is a module of its name, loaded when it is used. At module
level they import typer and the standard library only, so that help and shell completion start
at once; what a command works with is imported inside it.
"""
