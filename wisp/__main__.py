"""`python -m wisp`."""

import sys

from wisp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
