# Everything runs in .venv, which scripts/make-venv sets up on first use. PYTHON=... picks the
# interpreter it is made with (after `make clean`, where there is one already).

BIN = .venv/bin
# Files that take longest come first (tests/conftest.py), so that all workers end together.
PYTEST_FLAGS = -n 2 --dist loadfile --no-loadscope-reorder
# Slow tests wait for browsers and for processes of their own: a third worker has the cores meanwhile.
SLOW_FLAGS = -n 3 --dist loadfile --no-loadscope-reorder
# What runs once more as users run it: the other tests compile with most optimisations off.
OPTIMISED = $(addprefix tests/test_, messages.py lanes.py forward_backward.py mfvi.py gibbs.py \
	nuts.py evidence.py)
TEST_OPTIMISED = JAX_DISABLE_MOST_OPTIMIZATIONS=false $(BIN)/python -m pytest $(PYTEST_FLAGS) \
	-m "not slow" $(OPTIMISED)
# Tests keep what they compile, whatever the environment says: collecting them takes half as long.
export PYTHONDONTWRITEBYTECODE =
# Where `make study` keeps what it collects.
STUDY = btil-study

.PHONY: help setup demo study test test-slow test-all lint gallery docs test-package clean

help:
	@echo "make demo     learn from recordings of real teams, compare the methods, write a report"
	@echo "make study    serve a page on which people play and say what they want; STUDY=folder"
	@echo "make test     lint, type check and test, in five minutes"
	@echo "make test-all the same and the tests that take long, in one run"
	@echo "make test-package   build the package, install it on Python 3.13, run it and tests of it"
	@echo "make lint     lint and type check only"
	@echo "make gallery  draw docs/reference/gallery.md and its figures anew, in some minutes"
	@echo "make setup    only set up .venv (the others do it when it is needed)"
	@echo "make clean    remove .venv, caches and build folders"

setup:
	@sh scripts/make-venv

demo: setup
	@$(BIN)/btil demo

study: setup
	@$(BIN)/btil collect --out $(STUDY)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow"

test-slow: setup
	$(BIN)/python -m pytest $(SLOW_FLAGS) -m slow
	$(TEST_OPTIMISED)

test-package: setup
	$(BIN)/python scripts/check_package.py

# In one run: what tests of a file share is made once, and so are plans and programs.
test-all: lint
	$(BIN)/python -m pytest $(SLOW_FLAGS)
	$(TEST_OPTIMISED)

gallery: setup
	$(BIN)/python docs/make_gallery.py

docs: setup
	JAX_PLATFORMS=cpu $(BIN)/python docs/run_pages.py
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx --fail-on-warning --keep-going --jobs 2 --quiet docs build/docs
	@echo "the site is build/docs/index.html"

clean:
	rm -rf .venv build dist docs/reference/made *.egg-info .programs .pytest_cache .mypy_cache .ruff_cache
