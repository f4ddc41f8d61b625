"""`python -m openafm` is the `openafm` command."""

from openafm.cli.main import main

main()
