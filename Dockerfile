# The image of deploy/kubernetes, and of a server with PostgreSQL:
#   docker build -t phalanx:0.1.0 .
# Another image with Python 3.11 or newer can be used: --build-arg PYTHON=REGISTRY/python:3.13-slim
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
RUN python3 -m venv /opt/phalanx
COPY requirements/image.lock /src/requirements/image.lock
RUN /opt/phalanx/bin/pip install --no-cache-dir --require-hashes -r /src/requirements/image.lock
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN /opt/phalanx/bin/pip install --no-cache-dir --no-deps /src

FROM ${PYTHON}
COPY --from=build /opt/phalanx /opt/phalanx
ENV PATH=/opt/phalanx/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["phalanx"]
