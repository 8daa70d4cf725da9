# `keras-vit` in a container, for training.
#
#   docker build -f docker/train.Dockerfile -t keras-vit/train .
#   docker build -f docker/train.Dockerfile --build-arg EXTRAS=train,models,viz,gpu \
#       -t keras-vit/train:gpu .
#   mkdir -p runs
#   docker run --rm --init --stop-timeout 120 --user "$(id -u):$(id -g)" \
#       -v "$PWD/runs:/keras-vit/runs" keras-vit/train fit --recipe digits
#   docker run --rm --init --stop-timeout 120 --gpus all --shm-size 2g ... \
#       keras-vit/train:gpu fit --recipe NAME --strategy mirrored --precision mixed_bfloat16
#
# `docker stop` ends a training at a checkpoint, which takes longer than the ten seconds
# that it waits by default: hence --stop-timeout.
#
# Python's image, not TensorFlow's: constraints.txt decides TensorFlow's version, and the
# extra [gpu] brings the CUDA libraries; the machine needs the NVIDIA driver and the
# NVIDIA Container Toolkit alone. TensorFlow has wheels for amd64 and arm64.
# The digest, with @ before it, of
#   docker buildx imagetools inspect python:3.11-slim --format '{{.Manifest.Digest}}'
ARG PYTHON_TAG=3.11-slim
ARG PYTHON_DIGEST=

# hadolint ignore=DL3006
FROM python:${PYTHON_TAG}${PYTHON_DIGEST}

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    TF_CPP_MIN_LOG_LEVEL=2 \
    HOME=/home/keras-vit

# Anybody may be the user (--user), so anybody may write where caches go.
RUN install -d -m 1777 /home/keras-vit /keras-vit/runs

# The checkout is mounted while pip reads it, so that nothing but what it installs stays.
# First the dependencies, so that a change of the code does not bring them again.
# Where a proxy signs TLS anew: --secret id=ca,src=/etc/ssl/certs/ca-certificates.crt
WORKDIR /source
ARG EXTRAS=train,models,viz
# hadolint ignore=SC2086
RUN --mount=type=bind,source=setup.cfg,target=setup.cfg \
    --mount=type=bind,source=constraints.txt,target=constraints.txt \
    --mount=type=bind,source=build-constraints.txt,target=build-constraints.txt \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=cache,target=/root/.cache/pip \
    requirements="$(python -c "from configparser import ConfigParser as C; c = C(); \
c.read('setup.cfg'); print(c['options']['install_requires'], \
*(c['options.extras_require'][e] for e in '${EXTRAS}'.split(',')))")" \
    && PIP_CACHE_DIR=/root/.cache/pip PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_CONSTRAINT=/source/build-constraints.txt \
    pip install -c constraints.txt ${requirements}
RUN --mount=type=bind,target=/source,rw \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt pip install --no-cache-dir --no-deps .

WORKDIR /keras-vit
USER 10001:10001
ENTRYPOINT ["keras-vit"]
CMD ["--help"]
