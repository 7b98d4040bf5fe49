"""`python -m pidurable_nb`: the command line, for a Python whose scripts are not on the path. Decides nothing."""

from pidurable_nb.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
