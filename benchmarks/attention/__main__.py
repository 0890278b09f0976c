"""The program itself."""

import sys

from benchmarks.attention.command import main

sys.exit(main())
