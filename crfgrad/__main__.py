"""python -m crfgrad: the command line, see ``crfgrad.cli``."""

import sys

from crfgrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
