"""What pydensecrf can do, by its names: a program switches by changing its import lines.

``import crfgrad.pydensecrf.densecrf as dcrf`` takes the place of ``import pydensecrf.densecrf as dcrf``. A program
that cannot be changed runs under ``python -m crfgrad.pydensecrf SCRIPT``, or after ``install()``.
"""

import multiprocessing
import os
import sys
from pathlib import Path

import torch

from crfgrad.pydensecrf import densecrf, utils

__all__ = ["densecrf", "install", "utils"]


def install() -> None:
    """Lets ``import pydensecrf`` find this package, here and in processes of ``multiprocessing`` and ``joblib``.

    Programs that are started by ``subprocess`` do not know of it.

    Example::

        import crfgrad.pydensecrf

        crfgrad.pydensecrf.install()
        from pydensecrf.utils import unary_from_softmax  # of crfgrad
    """
    shim = str(Path(__file__).parent / "installed")
    here = sys.modules[__name__]
    found = sys.modules.get("pydensecrf", here)
    if found is not here and getattr(found, "__path__", None) is not None:
        raise RuntimeError("another pydensecrf is imported already: call crfgrad.pydensecrf.install() before that")
    sys.modules.update({"pydensecrf": here, "pydensecrf.densecrf": densecrf, "pydensecrf.utils": utils})
    if shim not in sys.path:
        sys.path.insert(0, shim)  # processes that are not forked are given the path


def _one_thread() -> None:
    torch.set_num_threads(1)


# torch's threads do not survive a fork: a process that had used them would wait for them forever
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_one_thread)
if multiprocessing.parent_process() is not None and "--multiprocessing-fork" not in sys.orig_argv:
    _one_thread()
