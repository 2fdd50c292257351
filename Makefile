# make run    make the environment, then do the main job on the embedded data set
# make test   make the environment, then check format, lint, types and tests
# make test-long    run the tests that take long: campaigns, examples, every recipe, whole runs
# make test-deploy  run the tests that start Flower's programs; they take minutes
# make setup  only the environment: .venv with nefl and everything it can use
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: run test test-long test-deploy setup format lint types unit clean

run: setup
	$(BIN)/nefl train digits

test: setup lint types unit

test-long: setup
	$(BIN)/python -m pytest -m long -n auto --dist worksteal

# Not in parallel: a federation has a dozen processes of its own.
test-deploy: setup
	$(BIN)/python -m pytest -m deploy

setup: $(VENV)/.ready

# A torch that the interpreter already has (a CUDA build, say) is used as it is, whatever its
# version: a .pth file shows the new environment where it lies, and its pin is dropped. Otherwise
# the pinned version goes in first and alone, so that no range can pull another. Where the interpreter
# has our tools too, they are installed besides: their programs belong into the environment.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
FIND_TORCH := import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])
SITE := import sysconfig; print(sysconfig.get_path("purelib"))

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@found=$$($(PYTHON) -c '$(FIND_TORCH)' 2>/dev/null) && \
	  echo "$$found" > "$$($(BIN)/python -c '$(SITE)')/existing-torch.pth" || true
	$(PIP) --upgrade 'pip>=24.2'
	@if $(BIN)/python -c 'import torch' 2>/dev/null; \
	  then grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt; \
	  else cp constraints.txt $(VENV)/constraints.txt && $(PIP) '$(TORCH)' -c constraints.txt; fi
	$(PIP) -e '.[all,dev]' -c $(VENV)/constraints.txt
	@for tool in ruff mypy; do test -x $(BIN)/$$tool || \
	  $(PIP) --ignore-installed --no-deps $$tool -c $(VENV)/constraints.txt; done
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
	$(BIN)/python -m pytest -n auto --dist worksteal

clean:
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache dist build
