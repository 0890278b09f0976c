"""Squares as sequences of corners. The program of the folder `squares`."""

import sys

from examples.squares.command import main

if __name__ == "__main__":
    sys.exit(main())
