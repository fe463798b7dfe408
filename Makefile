# Everything from a fresh clone, with Python 3.11 to 3.13 and make: `make demo`, `make test`.
# The targets install what they need into .venv, once, and again only when pyproject.toml changes.

VENV := .venv
BIN  := $(VENV)/bin

# The first interpreter that is of a supported version and can make a virtual environment. A name on PATH is not enough:
# version managers leave stubs there, and some distributions ship Python without ensurepip.
PROBE   := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHONS := python3.11 python3.12 python3.13 python3
PYTHON  ?= $(shell for p in $(PYTHONS); do if $$p -c '$(PROBE)' >/dev/null 2>&1; then echo $$p; break; fi; done)

# More arguments for pytest: make test PYTEST_ARGS="-k placement -x"
PYTEST_ARGS ?=
# How long `make pong` trains.
PONG_MINUTES ?= 60

# Tests start hundreds of processes, and each would compile dualray for itself.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env demo ray-demo pong lint format test test-core test-full test-ray test-slow test-pythons release test-release docs bench bench-sim bench-transfer bench-compare \
    build clean

help:  ## Print this help
	@echo 'Usage: make TARGET'
	@echo
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: $(VENV)/.installed-dev-all  ## Make .venv, with dualray in place and the development tools

demo: $(VENV)/.installed-examples  ## Train on real processes and on virtual clusters, and compare the runs in one table
	@$(BIN)/python examples/demo.py

ray-demo: $(VENV)/.installed-examples $(VENV)/.installed-ray  ## Run one program simulated, on real processes and on a local Ray of three nodes
	@$(BIN)/python -W ignore examples/ray_demo.py

pong: $(VENV)/.installed-examples  ## Learn to play Pong from pixels for PONG_MINUTES (60), and draw the curve
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python examples/rl_pong/driver.py --batch-size=10 --iterations=1000000 \
	    --minutes=$(PONG_MINUTES) --scores=pong_scores.txt
	@$(BIN)/python examples/rl_pong/plot.py pong_scores.txt pong.svg

lint: env  ## Check form, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

changes: env  ## Print the section of CHANGELOG.md that the files in changes/ make
	@$(BIN)/towncrier build --draft --version next

release-notes: env  ## Move the files in changes/ into CHANGELOG.md, as VERSION
	$(BIN)/towncrier build --yes --version $(VERSION)

format: env  ## Put the code in the form that lint asks for
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: env $(VENV)/.installed-ray lint  ## Lint, then run every test that is not slow
	$(BIN)/python -m pytest -m 'not slow' -n 3 $(PYTEST_ARGS)
	$(BIN)/python -m tests.through_ray -q -m 'not slow' -n 3
	$(BIN)/python -m pytest --mode ray $(RAY_CHOSEN)
	$(BIN)/python -m pytest tests/on_ray/test_recording.py

# Part of the tests on a local Ray: below two minutes. `make test-ray` runs them all.
RAY_CHOSEN := $(addprefix tests/conformance/test_,tasks.py get_put_wait.py call_arguments.py nested.py method_retries.py classic.py)

# A session for each module: Ray has crashed where hundreds of programs ran in one. 5: nothing there runs on Ray.
test-ray: env $(VENV)/.installed-ray  ## Run the conformance tests, those of mode "ray", and the programs of the guide's manner, on a local Ray
	$(BIN)/python -m pytest tests/on_ray $(PYTEST_ARGS)
	@failed=; for module in tests/conformance/test_*.py; do echo $$module; \
	    $(BIN)/python -m pytest -q --mode ray $$module $(PYTEST_ARGS) || [ $$? = 5 ] || failed="$$failed $$module"; done; \
	    [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }
	$(BIN)/python -m pytest --mode ray tests/guide_programs $(PYTEST_ARGS)

test-full: test test-slow test-ray  ## Run every test there is, and all conformance tests through `import ray`
	$(BIN)/python -m tests.through_ray --all -q -n 3

test-core: $(VENV)/.installed-dev  ## Run the tests of the core and of the command line alone, without TensorFlow
	$(BIN)/python -m pytest -m 'not slow' -n 2 tests/shared tests/cli/test_app.py $(PYTEST_ARGS)

test-pythons: env  ## Run the fast tests of the core with Python 3.11, 3.12 and 3.13, as far as they are here
	$(BIN)/python -m tests.release pythons $(RELEASE_ARGS)

release: env  ## Build dist/: compiled manylinux wheels for the Pythons that are here, one of Python alone, the source
	$(BIN)/python -m tests.release build $(RELEASE_ARGS)

test-release: env  ## Install each file of dist/ into an environment of its own, and try it there
	$(BIN)/python -m tests.release check $(RELEASE_ARGS)

docs: $(VENV)/.installed-docs  ## Build the site into build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'build/site/index.html'

test-slow: env  ## Run the slow tests
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

# The wheel is unpacked beside .venv's Ray, and found before the tree; DUALRAY_PURE=1 makes it one of Python alone.
define unpack-wheel
	@rm -rf build/bench
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/bench dist/*.whl
	@ln -s ../../benchmarks build/bench/benchmarks
endef

bench: env $(VENV)/.installed-bench build  ## Measure the wheel (DUALRAY_PURE=1: not compiled), and Ray beside it
	@mkdir -p .benchmarks
	$(unpack-wheel)
	cd build/bench && PYTHONPATH=$(CURDIR)/build/bench $(CURDIR)/$(BIN)/python -m pytest -c $(CURDIR)/pyproject.toml \
	    --rootdir . --override-ini pythonpath= -p no:cacheprovider benchmarks --benchmark-only \
	    --benchmark-json=$(CURDIR)/.benchmarks/last.json $(PYTEST_ARGS)

bench-sim: env $(VENV)/.installed-bench build  ## Measure simulation beside SimPy, with the wheel as bench does
	$(unpack-wheel)
	cd build/bench && PYTHONPATH=$(CURDIR)/build/bench $(CURDIR)/$(BIN)/python -m benchmarks.bench_sim $(BENCH_SIM_ARGS)

bench-transfer: env $(VENV)/.installed-bench  ## Measure objects between nodes beside bare sockets (bench does it, too)
	$(BIN)/python -m pytest benchmarks/bench_transfer.py --benchmark-only $(PYTEST_ARGS)

bench-compare: env  ## Hold the last `make bench` against the committed ratios, and name what got slower
	$(BIN)/python -m benchmarks.compare $(COMPARE_ARGS)

build: export DUALRAY_PROFILE ?= 1
build: env  ## Build the wheel into dist/, its core compiled where there is a C compiler (DUALRAY_PURE=1: never)
	@rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist .

clean:  ## Remove what the other targets made, except .venv
	rm -rf dist build *.egg-info demo_output timeline_*.json pong_scores.txt pong.svg
	rm -rf .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo 'Installing dualray[$*] into $(VENV) (minutes the first time)'
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@if [ -z '$(PYTHON)' ]; then \
	    echo 'dualray needs Python 3.11, 3.12 or 3.13 with the modules venv and ensurepip, and found none of: $(PYTHONS).' >&2; \
	    echo 'Install one (on Debian and Ubuntu also its package python3-venv), or name it: make PYTHON=/path/to/python' >&2; \
	    exit 1; \
	fi
	@echo "Making $(VENV) with $$('$(PYTHON)' --version)"
	@'$(PYTHON)' -m venv $(VENV)
