"""The program itself."""

import sys

from examples.language_model.command import main

sys.exit(main())
