"""The command line: folders of images and maps in, folders of images and maps out.

The only part of the library that reads and writes images. It needs more than the library does, the extra
``cli``, and nothing else imports it.
"""

from crfgrad.cli.command import main

__all__ = ["main"]
