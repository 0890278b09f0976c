"""The program itself."""

import sys

from examples.translation.command import main

sys.exit(main())
