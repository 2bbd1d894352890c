"""The ``selfdraft`` command."""
