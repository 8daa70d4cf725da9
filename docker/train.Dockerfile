# syntax=docker/dockerfile:1
# `keras-vit` in a container, for training.
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

# First the dependencies, so that a change of the code does not bring them again.
COPY setup.cfg constraints.txt build-constraints.txt ./
ARG EXTRAS=train,models,viz
RUN python -c "from configparser import ConfigParser as C; c = C(); c.read('setup.cfg'); \
print(c['options']['install_requires'], \
*(c['options.extras_require'][e] for e in '${EXTRAS}'.split(',')))" > requirements.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    PIP_CACHE_DIR=/root/.cache/pip PIP_CONSTRAINT=/keras-vit/build-constraints.txt \
    pip install -c constraints.txt -r requirements.txt

COPY pyproject.toml README.md LICENSE keras_vit_command.py ./
COPY keras_vit keras_vit
COPY training training
COPY serving serving
RUN pip install --no-cache-dir --no-deps .

USER 10001:10001
ENTRYPOINT ["keras-vit"]
CMD ["--help"]
