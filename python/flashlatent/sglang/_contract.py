"""What the plugin replaces in SGLang, or calls, and the arguments of each."""

import inspect
from typing import Any, Dict, List, Tuple


def faults_of(*needs: Tuple[Any, Dict[str, str]]) -> List[str]:
    """What is missing or takes other arguments; `needs` has owners, and the arguments of their functions."""
    faults = []
    for owner, wanted in needs:
        for name, arguments in wanted.items():
            function = getattr(owner, name, None)
            if function is None:
                faults.append(f"{name} is missing")
            elif list(inspect.signature(function).parameters) != arguments.split():
                faults.append(f"{name} takes ({', '.join(inspect.signature(function).parameters)})")
    return faults
