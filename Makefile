# Everything that a fresh machine with Python 3.11 and make needs: make demo, make test.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
RUN = $(VENV)/bin/python -m
PEERS = .peers

.PHONY: demo test benchmark lint clean

demo: $(VENV)/installed
	$(RUN) experiments.demo

test: lint
	$(RUN) pytest --numprocesses auto --maxprocesses 8 --dist loadfile

benchmark: $(PEERS)/installed
	OMP_WAIT_POLICY=passive PYTHONPATH=$(PEERS) $(RUN) experiments.benchmark

lint: $(VENV)/installed
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

$(VENV)/installed: requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --requirement requirements.txt
	$(RUN) pip install --quiet --no-deps --editable .
	touch $@

# what the benchmark compares with, for the benchmark alone; pydensecrf2 needs a C++ compiler
$(PEERS)/installed: $(VENV)/installed experiments/benchmark/peers.txt
	$(RUN) pip install --quiet --no-deps --upgrade --target $(PEERS) --requirement experiments/benchmark/peers.txt
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) outputs
