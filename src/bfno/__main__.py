"""`python -m bfno`."""

import sys

from bfno.cli import main

sys.exit(main())
