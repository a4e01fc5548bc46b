# An image of a JupyterHub user's server, without a framework: put yours on top of it. PyTorch's and
# JAX's wheels bring CUDA's libraries with them; where another base is needed, say
# --build-arg BASE=IMAGE (Debian or Ubuntu, Python 3.11 or later with pip).
# After `make dist`, in the repository's root:
#   docker build -f etc/deploy/docker/singleuser.Dockerfile --build-arg VERSION=0.1.0 -t jupyter-gpushare-singleuser:0.1.0 .
ARG BASE=python:3.13-slim-trixie
FROM ${BASE}
ARG VERSION
# The Hub's own version, by its first number at least.
ARG JUPYTERHUB="jupyterhub>=5.3,<7"
LABEL org.opencontainers.image.title="jupyter-gpushare-singleuser" \
      org.opencontainers.image.description="A JupyterLab that shares GPUs by jupyter_gpushare" \
      org.opencontainers.image.source="https://github.com/jupyter-gpushare/jupyter_gpushare" \
      org.opencontainers.image.licenses="BSD-3-Clause" \
      org.opencontainers.image.version="${VERSION}"
USER root
# It waits for processes that kernels leave behind, and passes signals on.
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
# By their paths: of our packages nothing comes from an index.
RUN --mount=type=bind,source=dist,target=/wheels \
    pip install --no-cache-dir --no-compile --find-links /wheels \
    /wheels/jupyter_gpushare*-"${VERSION:?say --build-arg VERSION=...}"-*.whl \
    "${JUPYTERHUB}" "jupyterlab>=4.2,<5" "notebook>=7.2,<8"
RUN useradd --create-home --uid 1000 --shell /bin/bash jovyan
# So that a server without the mount says so, and does not share the GPUs a second time.
ENV JUPYTER_GPUSHARE_SOCKET=/run/jupyter-gpushare/node.sock
EXPOSE 8888
USER 1000
WORKDIR /home/jovyan
ENTRYPOINT ["tini", "-g", "--"]
CMD ["jupyterhub-singleuser"]
# JupyterHub asks its servers by itself.
HEALTHCHECK NONE
