"""`python -m bfno`."""

import sys

from bfno.lab.cli import main

sys.exit(main())
