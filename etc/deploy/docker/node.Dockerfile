# The image of the node manager, and in Kubernetes of the pool. The driver's libraries come from the
# NVIDIA runtime.
# After `make dist`, in the repository's root:
#   docker build -f etc/deploy/docker/node.Dockerfile --build-arg VERSION=0.1.0 -t jupyter-gpushare-node:0.1.0 .
ARG BASE=python:3.13-slim-trixie
FROM ${BASE}
ARG VERSION
LABEL org.opencontainers.image.title="jupyter-gpushare-node" \
      org.opencontainers.image.description="The GPU node manager of jupyter_gpushare" \
      org.opencontainers.image.source="https://github.com/jupyter-gpushare/jupyter_gpushare" \
      org.opencontainers.image.licenses="BSD-3-Clause" \
      org.opencontainers.image.version="${VERSION}"
# The Hub's own version, by its first number at least.
ARG JUPYTERHUB="jupyterhub>=5.3,<7"
# By their paths: of our packages nothing comes from an index. The other two are for the pool.
RUN --mount=type=bind,source=dist,target=/wheels \
    pip install --no-cache-dir --no-compile --find-links /wheels \
    /wheels/jupyter_gpushare*-"${VERSION:?say --build-arg VERSION=...}"-*.whl \
    "${JUPYTERHUB}" "cryptography>=42"
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1
# Jupyter reads them first: a configuration file or an option says another value.
RUN mkdir -p /usr/local/etc/jupyter && echo '{"NodeManagerApp": {"shared": true, "metrics_port": 9464, \
"socket": "/run/jupyter-gpushare/node.sock", "ledger": "/var/lib/jupyter-gpushare/ledger.sqlite"}}' \
    > /usr/local/etc/jupyter/jupyter_config.json
VOLUME ["/run/jupyter-gpushare", "/var/lib/jupyter-gpushare"]
EXPOSE 9464
# Root, but it needs no capability: the socket's directory has to be root's, so that nobody else can
# put a socket there. It ends on SIGTERM, and starts no processes that it would have to wait for.
USER root
ENTRYPOINT ["jupyter-gpushare", "node"]
# Whatever it answers, it works. `jupyter gpushare status` would need somebody's token with --hub.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s \
    CMD ["python", "-c", "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(8); s.connect('/run/jupyter-gpushare/node.sock'); s.sendall(b'{}\\n'); s.recv(1) or exit(1)"]
