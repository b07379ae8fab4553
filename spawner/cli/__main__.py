"""`python -m spawner.cli`."""

from spawner.cli import main

main()
