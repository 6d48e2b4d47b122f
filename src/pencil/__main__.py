"""python -m pencil."""

from .cli.main import main

main()
