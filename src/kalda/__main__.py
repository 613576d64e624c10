"""`python -m kalda`: the command line, also where its script is not on the PATH."""

import sys

from kalda.cli.main import main

sys.exit(main())
