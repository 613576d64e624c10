# A node of Kalda, and the kalda command. packaging/image_entry.py says which variables make the node's properties.
#   docker build -t kalda . && docker run -p 9092:9092 -v kalda-data:/var/lib/kalda kalda
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml setup.py README.md LICENSE /src/
COPY src /src/src
RUN pip wheel --no-cache-dir --wheel-dir /wheels /src

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels pip install --no-cache-dir --no-index --find-links /wheels kalda \
    && useradd --system --uid 9092 --home-dir /var/lib/kalda --create-home kalda
COPY packaging/image_entry.py /usr/local/lib/kalda-entry.py
ENV PYTHONUNBUFFERED=1
USER kalda
VOLUME /var/lib/kalda
EXPOSE 9092
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["kalda", "cluster", "id", "--request-timeout-ms", "3000"]
ENTRYPOINT ["python", "/usr/local/lib/kalda-entry.py"]
