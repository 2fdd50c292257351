# make run    make the environment, then do the main job on the embedded data set
# make test   make the environment, then check format, lint, types and tests
# make setup  only the environment: .venv with nefl and everything it can use
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: run test setup format lint types unit clean

run: setup
	$(BIN)/nefl train digits

test: setup lint types unit

setup: $(VENV)/.ready

# A torch that the interpreter already has (a CUDA build, say) is used as it is and its pin is
# dropped; otherwise the pinned version goes in first and alone, so that no range can pull another.
$(VENV)/.ready: pyproject.toml constraints.txt
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then site=--system-site-packages; fi; \
	  $(PYTHON) -m venv $$site $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=24.2'
	@if $(BIN)/python -c 'import torch' 2>/dev/null; \
	  then grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt; \
	  else cp constraints.txt $(VENV)/constraints.txt; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' -c constraints.txt; fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]' -c $(VENV)/constraints.txt
	@touch $@

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -n auto

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache dist build
