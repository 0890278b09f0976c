"""The program itself."""

import sys

from benchmarks.gpu_programs.command import main

sys.exit(main())
