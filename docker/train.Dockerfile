# syntax=docker/dockerfile:1
# `python -m training` in a container.
#
#   docker build -f docker/train.Dockerfile -t keras-vit/train .
#   docker build -f docker/train.Dockerfile --build-arg EXTRAS=train,models,viz,gpu \
#       -t keras-vit/train:gpu .
#   docker run --rm --init --user "$(id -u):$(id -g)" -v "$PWD/runs:/keras-vit/runs" \
#       keras-vit/train fit --recipe digits
#   docker run --rm --init --gpus all --shm-size 2g ... keras-vit/train:gpu \
#       fit --recipe NAME --strategy mirrored --precision mixed_bfloat16
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

WORKDIR /keras-vit

# First what decides the dependencies, so that a change of the code does not bring them
# again; the package itself is a link to this folder.
COPY setup.cfg pyproject.toml constraints.txt build-constraints.txt README.md LICENSE ./
COPY keras_vit/__init__.py keras_vit/_version.py keras_vit/
ARG EXTRAS=train,models,viz
RUN --mount=type=cache,target=/root/.cache/pip \
    PIP_CACHE_DIR=/root/.cache/pip PIP_CONSTRAINT=/keras-vit/build-constraints.txt \
    pip install -c constraints.txt -e ".[${EXTRAS}]"

COPY keras_vit keras_vit
COPY training training

USER 10001:10001
ENTRYPOINT ["python", "-m", "training"]
CMD ["--help"]
