"""`python -m penstock.cli`: the command, by the Python at hand."""

from penstock.cli.app import main

main()
