# docker build -t calibrant . && docker run --rm -v "$PWD:/work" calibrant measure predictions.npz
FROM python:3.13-slim
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir /source && rm -r /source
WORKDIR /work
ENTRYPOINT ["calibrant"]
