"""`python -m openafm` is the `openafm` command."""

from openafm.cli.main import main

if __name__ == "__main__":  # and not where processes that share out a run import it
    main()
