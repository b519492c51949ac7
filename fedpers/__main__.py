"""`python -m fedpers` is the same as `fedpers`."""

import sys

from fedpers.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
