# picstore with the loader, object stores and all image formats. From a clone:
#
#   docker build -t picstore .
#   docker run --rm -v "$PWD:/data" picstore convert /data/photos /data/train
#
# tests/test_packaging.py carries out these steps without Docker.
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends libmagickwand-6.q16-6 libmagickcore-6.q16-6-extra gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# gcc and libc6-dev: Triton compiles what launches its kernels on a GPU.
WORKDIR /opt/picstore
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY picstore ./picstore
# uv compares what it downloads with the hashes of constraints.txt; pip cannot, beside a folder that has none, and compares
# uv.
RUN sed -n '/^uv==/,/[^\\]$/p' constraints.txt >/tmp/uv.txt \
    && pip install --no-cache-dir --require-hashes --requirement /tmp/uv.txt \
    && uv pip install --system --no-cache --constraint constraints.txt '.[torch,objects,formats,mozjpeg]'

# Compiled kernels, which any user of the container loads and only root can change. Where the CPU is of another model than
# the building machine's, they are compiled once more, into the user's home.
RUN picstore warm

WORKDIR /data
ENTRYPOINT ["picstore"]
