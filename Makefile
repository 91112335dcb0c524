# demo, test, bench and lint on a fresh machine: the first call makes .venv with what it needs.
PYTHON ?= python3
# One torch version for every run of the tests: what a rewrite is equal to is judged against it.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test bench lint format clean

$(VENV)/.package: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.tools: $(VENV)/.package
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

$(VENV)/.torch: $(VENV)/.tools
	$(BIN)/python -m pip install --quiet $(TORCH)
	touch $@

# On a copy, and outside the checkout: what is fixed there is not the original, nor ignored by git.
demo: $(VENV)/.package
	@folder=$$(mktemp -d) && cp -r fixtures "$$folder" && cd "$$folder/fixtures" && \
	for options in '' '--diff' '--fix --show-fixes --output-format concise'; do \
	    printf '\n$$ attn-advisor check %s\n' "$$options"; \
	    '$(CURDIR)/$(BIN)/attn-advisor' check --isolated --no-cache $$options . ; \
	done; printf '\nThe fixed copy is in %s\n' "$$folder/fixtures"

test: $(VENV)/.torch
	$(BIN)/python -m pytest -n auto

bench: $(VENV)/.tools
	$(BIN)/python benchmarks/check_speed.py

lint: $(VENV)/.tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist
