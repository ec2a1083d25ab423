"""`python -m phalanx.cli`, for where the script is not on the path."""

from phalanx.cli import main

main()
