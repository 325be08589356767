"""Stands for pydensecrf on the path of processes that are started after ``crfgrad.pydensecrf.install()``."""

from crfgrad.pydensecrf import install

install()
