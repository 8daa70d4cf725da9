# TensorFlow Serving as an ordinary user, with the flags of compose.yaml.
#
#   docker build -f docker/serve.Dockerfile --target server -t keras-vit/serving:2.20.0 .
#   docker build -f docker/serve.Dockerfile --build-arg MODELS=models -t flowers:7 .
#
# The first has no model in it and reads /models; the second carries its models, so that
# what was tested is what runs. On a GPU: --build-arg TF_SERVING_TAG=2.20.0-gpu.
# The official images are for amd64 only; elsewhere there is `keras-vit serve`.
#
# A tag can be moved, a digest cannot. Write the one that this prints, with @ before it,
# into TF_SERVING_DIGEST (here by --build-arg, in compose by docker/.env):
#   docker buildx imagetools inspect tensorflow/serving:2.20.0 --format '{{.Manifest.Digest}}'
ARG TF_SERVING_TAG=2.20.0
ARG TF_SERVING_DIGEST=

# hadolint ignore=DL3006
FROM tensorflow/serving:${TF_SERVING_TAG}${TF_SERVING_DIGEST} AS server

# What the driver compiled from PTX is kept here (the GPU image has machine code for
# sm_60, 70, 80 and 89 only; an H100 compiles for minutes at the first load). A volume
# takes the owner of the folder that it is laid over.
# oneDNN: TensorFlow's default only where the processor has AVX512_VNNI.
RUN install -d -o 10001 -g 10001 /var/cache/cuda
ENV CUDA_CACHE_PATH=/var/cache/cuda \
    CUDA_CACHE_MAXSIZE=4294967296 \
    MODEL_NAME=vit \
    TF_ENABLE_ONEDNN_OPTS=1

# With their own modes, files from a machine with umask 077 could not be read.
COPY --chmod=0555 docker/tfserving/models.config \
     docker/tfserving/monitoring.config \
     docker/tfserving/session.config \
     /config/

USER 10001:10001
EXPOSE 8500 8501

# The official entrypoint is a shell script that does not pass signals on.
ENTRYPOINT ["/usr/bin/tensorflow_model_server"]
CMD ["--port=8500", \
     "--rest_api_port=8501", \
     "--rest_api_timeout_in_ms=10000", \
     "--grpc_max_threads=64", \
     "--rest_api_num_threads=32", \
     "--tensorflow_session_config_file=/config/session.config", \
     "--model_config_file=/config/models.config", \
     "--model_config_file_poll_wait_seconds=10", \
     "--allow_version_labels_for_unavailable_models=true", \
     "--monitoring_config_file=/config/monitoring.config", \
     "--enable_grpc_healthcheck_service=true", \
     "--enable_profiler=false", \
     "--max_num_load_retries=1", \
     "--load_retry_interval_micros=2000000", \
     "--num_load_threads=2", \
     "--num_unload_threads=2"]

# The image has bash, but neither curl nor wget nor Python. /metadata is 200 only while a
# version of the model is loaded; the status page is 200 also while none is.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8501 && printf 'GET /v1/models/%s/metadata HTTP/1.0\\r\\n\\r\\n' \"$MODEL_NAME\" >&3 && read -r _ code _ <&3 && [ \"$code\" = 200 ]"]

FROM server AS with-models
ARG MODELS=models
COPY --chown=0:0 --chmod=0555 ${MODELS} /models
