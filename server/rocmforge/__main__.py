"""`python -m rocmforge`."""

import sys

from rocmforge.cli import main

sys.exit(main())
