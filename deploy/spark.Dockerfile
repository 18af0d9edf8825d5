# The image of Aerobee's jobs on Spark: Java 17, pyspark, and aerobee[spark]. Brokers need none of it: theirs is deploy/Dockerfile.
#
#   docker build -f deploy/spark.Dockerfile -t aerobee-spark:dev .
#
# BASE     a Debian 12
# RUST     where the native part is compiled; a Debian 12 with a Rust of 1.89 or later
# WHEELS   built: compile and fetch all wheels here; given: take them from dist/image-spark/, where scripts/make-image puts them
ARG BASE=debian:bookworm-slim
ARG RUST=rust:1-slim-bookworm
ARG WHEELS=built

FROM ${RUST} AS wheels-built
RUN apt-get update -qq && apt-get install -qqy --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev && python3 -m venv /venv
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY native native
COPY aerobee aerobee
RUN AEROBEE_BUILD_NATIVE=require /venv/bin/pip wheel -q --wheel-dir /wheels '.[spark]' pip

FROM ${BASE} AS wheels-given
COPY dist/image-spark /wheels

FROM wheels-${WHEELS} AS wheels

FROM ${BASE}
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq \
    && apt-get install -qqy --no-install-recommends openjdk-17-jre-headless python3 python3-venv tini \
    && rm -rf /var/lib/apt/lists/*
# Hadoop's classes want a name for the user that they run as.
RUN useradd --uid 10001 --user-group --home-dir /var/lib/aerobee --shell /bin/sh aerobee \
    && mkdir -p /var/lib/aerobee/page && chown -R 10001:10001 /var/lib/aerobee
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels python3 -m venv --without-pip /opt/aerobee \
    && /opt/aerobee/bin/python "$(ls /wheels/pip-*.whl)/pip" install -q --no-index --find-links /wheels 'aerobee[spark]'
ENV PATH=/opt/aerobee/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/var/lib/aerobee PYSPARK_PYTHON=/opt/aerobee/bin/python
USER 10001:10001
WORKDIR /var/lib/aerobee
VOLUME /var/lib/aerobee
ENTRYPOINT ["/usr/bin/tini", "--", "aerobee", "spark"]
CMD ["--help"]
