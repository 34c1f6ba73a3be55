# make demo    a learner, two workers and one log: watch a model learn (extra arguments: make demo ARGS="--seed 7")
#              make demo LOG=nats   the same over a NATS server that it starts; LOG=s3 over an S3 service
# make test    all tests, a process for each core (extra arguments: make test ARGS="tests/wire -k golden" JOBS=0)
# make check   lint, format and types
# make lock    remake requirements.lock from pyproject.toml; make lock UPGRADE=--upgrade takes newer releases
#
# Each target sets itself up in .venv from requirements.lock, and again when the lock or pyproject.toml changes.
# Needed beforehand: Python 3.11 or newer with pip and its headers, and a C compiler.

PYTHON ?= python3
ARGS ?=
JOBS ?= auto
LOG = file
UPGRADE ?=

BIN := .venv/bin
READY := .venv/.ready
PIP := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check

.DELETE_ON_ERROR:
.PHONY: demo test check format lock clean

demo: $(READY)
	$(BIN)/hilo demo --log $(LOG) $(ARGS)

test: $(READY)
	$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Some systems ship Python's venv without a bundled pip; the one beside $(PYTHON) then installs from outside.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "HiLo needs Python 3.11 or newer, $(PYTHON) is older: run make with PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || $(PYTHON) -m venv --without-pip .venv
	@echo "setting up .venv from requirements.lock (some minutes, once)"
	$(PIP) install --quiet --requirement requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@echo "compiling the kernels (once)"
	$(BIN)/python scripts/compile_kernels.py
	@touch $@

# The lock serves CPU and CUDA machines alike: it names torch's public version only and leaves out the CUDA
# libraries, which pip adds by itself where it picks the CUDA build. Existing pins are kept unless UPGRADE is set.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet pip-tools==7.6.2
	cp requirements.lock build/lock/resolved.txt
	build/lock/bin/pip-compile --quiet $(UPGRADE) --all-extras --allow-unsafe --strip-extras --no-annotate \
		--no-header --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--output-file build/lock/resolved.txt pyproject.toml
	{ echo "# Every package of HiLo's environment, made by \`make lock\` from pyproject.toml; do not edit."; \
	  sed -E -e '/^(#|$$|hilosync |cuda-|nvidia-|triton)/d' -e 's/\+[a-z0-9.]+$$//' build/lock/resolved.txt | sort; \
	} > build/lock/requirements.lock
	mv build/lock/requirements.lock requirements.lock

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
