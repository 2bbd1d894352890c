"""``python -m selfdraft``."""

from selfdraft.cli.main import main

main()
