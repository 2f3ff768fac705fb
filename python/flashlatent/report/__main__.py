"""python -m flashlatent.report"""

import sys

from . import main

sys.exit(main())
