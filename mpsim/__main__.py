"""``python -m mpsim`` is the command line."""

import sys

from mpsim.cli import main

if __name__ == "__main__":
    sys.exit(main())
