"""Run the command line: ``python -m headway``."""

from headway.cli import main

main()
