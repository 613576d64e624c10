"""`python -m kalda`: the command line, also where its script is not on the PATH."""

import sys

from kalda.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
