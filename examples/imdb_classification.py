"""Is a movie review positive? The program of the folder `imdb`."""

import sys

from examples.imdb.command import main

if __name__ == "__main__":
    sys.exit(main())
