# An image with dualray from its wheel, which runs the demo:
#
#   make release && docker build --tag dualray . && docker run --rm --shm-size=1g dualray
#
# docker/build.sh makes images to build upon.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm

RUN useradd --create-home --uid 1000 dualray
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

COPY dist /tmp/dist
RUN pip install --find-links /tmp/dist 'dualray[examples]' && rm -rf /tmp/dist && dualray version

USER dualray
WORKDIR /home/dualray
RUN dualray examples --copy examples
CMD ["python", "examples/demo.py"]
