"""python -m flashlatent.flash_mla PROGRAM [ARGUMENT...]: runs a program whose `import flash_mla` gets this package."""

import os
import runpy
import sys

from flashlatent import flash_mla
from flashlatent.flash_mla import flash_mla_interface, fused_norm_rope_attn_rope_cast


def run(arguments):
    """Runs the program that is the first argument, and passes it the others."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return
    if not arguments or not os.path.isfile(arguments[0]):
        named = f"'{arguments[0]}', not a file" if arguments else "missing"
        print(f"flashlatent.flash_mla: PROGRAM is {named}; a Python program that imports flash_mla is expected",
              file=sys.stderr)
        sys.exit(2)
    sys.modules["flash_mla"] = flash_mla
    sys.modules["flash_mla.flash_mla_interface"] = flash_mla_interface
    sys.modules["flash_mla.fused_norm_rope_attn_rope_cast"] = fused_norm_rope_attn_rope_cast
    sys.argv = arguments
    # Spawned processes have this path, but not these modules.
    sys.path[:1] = [os.path.dirname(os.path.abspath(arguments[0])),
                    os.path.join(os.path.dirname(flash_mla.__file__), "_alias")]
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    run(sys.argv[1:])
