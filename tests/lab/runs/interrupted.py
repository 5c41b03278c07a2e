"""`python -m bfno` in which a signal comes while a module is imported.

From outside nobody can tell how far a program is: on a busy machine, whoever sends the signal when
he sees the import may come when it is long over.
"""

import os
import runpy
import sys

MODULE, NUMBER = "INTERRUPTED_IMPORT", "INTERRUPTED_BY"


def _interrupt(module: str, number: int) -> None:
    """Send this process a signal at the first import behind the beginning of this one."""
    has_begun = is_sent = False

    def hear(event: str, arguments: tuple) -> None:
        nonlocal has_begun, is_sent
        if event == "import" and not is_sent:
            is_sent = has_begun
            has_begun = has_begun or arguments[0] == module
            if is_sent:
                os.kill(os.getpid(), number)

    sys.addaudithook(hear)


if __name__ == "__main__":
    _interrupt(os.environ[MODULE], int(os.environ[NUMBER]))
    runpy.run_module("bfno", run_name="__main__", alter_sys=True)
