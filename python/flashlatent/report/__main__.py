"""python -m flashlatent.report"""

from .._program import leave
from . import main

leave(main)
