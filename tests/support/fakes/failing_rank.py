"""A worker of several ranks that fails where $FAILING_RANK says: in `load`, or in a `step`.

Instead of `rocmforge_hip.parallel.worker`, see `processes.WORKER` there.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from rocmforge.errors import BackendError, OutOfMemory
from rocmforge_hip.load.model import ModelLoading
from rocmforge_hip.parallel import worker
from rocmforge_hip.run.runner import HipRunner


def fail_in_load(*_: Any) -> NoReturn:
    """Instead of `ModelLoading.load`, when the ranks have found each other."""
    raise OutOfMemory("this device is too small")


def fail_in_step(*_: Any) -> NoReturn:
    """Instead of `HipRunner.submit`."""
    raise BackendError("hipGraphLaunch", "this device is broken")


def main() -> int:
    """Entry point of the process."""
    if os.environ["FAILING_RANK"] == "load":
        setattr(ModelLoading, "load", fail_in_load)  # noqa: B010
    else:
        setattr(HipRunner, "submit", fail_in_step)  # noqa: B010
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
