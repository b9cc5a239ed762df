# One image for the service, the worker and every other command: `docker run surespan <command>`.
ARG PYTHON=3.12.8-slim-bookworm

# Where packages come from is your pip's business: a pip.conf given as a build secret is used and not kept. One that knows
# of CPU builds of torch saves gigabytes of CUDA.
FROM python:${PYTHON} AS wheel
WORKDIR /source
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf pip install --no-cache-dir "setuptools>=77"
COPY pyproject.toml README.md LICENSE ./
COPY backend backend
COPY conformal conformal
COPY migrations migrations
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist .

FROM python:${PYTHON}
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=wheel /dist /dist
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf python -m venv /opt/surespan \
    && /opt/surespan/bin/pip install /dist/*.whl \
    && rm -rf /dist
ENV PATH=/opt/surespan/bin:$PATH

# A user of its own, with a home for the SQLite file (when PostgreSQL is not used) and for compiled kernels.
RUN useradd --create-home --home-dir /var/lib/surespan --uid 10001 surespan \
    && install -d -o surespan -g surespan /var/lib/surespan/kernels /var/lib/surespan/models
USER surespan
WORKDIR /var/lib/surespan
ENV HOME=/var/lib/surespan \
    NUMBA_CACHE_DIR=/var/lib/surespan/kernels \
    MODEL_DIR=/var/lib/surespan/models \
    SURESPAN_DATABASE_URL=sqlite:////var/lib/surespan/surespan.db
# Compile the kernels once, here, instead of at every first start (another kind of processor compiles them again).
RUN SURESPAN_DATABASE_URL=sqlite:////tmp/warm.db surespan predict --json "Warm." > /dev/null && rm -f /tmp/warm.db*

EXPOSE 9090
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD ["python", "-m", "backend.doctor.health", "service"]
ENTRYPOINT ["surespan"]
CMD ["serve"]
