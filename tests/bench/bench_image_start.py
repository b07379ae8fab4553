"""What the start of a server costs in an image: `python -m tests.bench.bench_image_start [IMAGE ...]`.

Runs `jupyterhub-singleuser` in a container of the engine that DOCKER_HOST names, beside a container that answers as the
hub's API does, and reads the clock, the processor time and the memory of its control group at its first answer.
"""

import argparse
import json
import statistics
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, cast

import docker

from deploy.build_images import connect
from deploy.image_recipe import read_catalog

NETWORK = "gpucampus-bench"
LIMIT_S = 60
HUB = """
import http.server, json
class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps({"version": "6.1.1"}).encode())
    do_POST = do_GET
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("", 8081), Hub).serve_forever()
"""
ENVIRONMENT = {
    "HOME": "/home/person",
    "JUPYTERHUB_API_TOKEN": "bench",
    "JUPYTERHUB_API_URL": "http://hub:8081/hub/api",
    "JUPYTERHUB_CLIENT_ID": "jupyterhub-user-bench",
    "JUPYTERHUB_SERVICE_PREFIX": "/user/bench/",
    "JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:8888/user/bench/",
    "JUPYTERHUB_USER": "bench",
}


def first_answer(client: docker.DockerClient, image: str) -> tuple[float, float, float]:
    """Start a server and wait for its first answer; seconds, processor seconds, and megabytes at that moment."""
    began = time.monotonic()
    container = client.containers.run(
        image,
        detach=True,
        network=NETWORK,
        user="200000:200000",
        read_only=True,
        init=True,
        environment=ENVIRONMENT,
        working_dir="/home/person",
        tmpfs={"/tmp": "", "/home/person": "uid=200000,gid=200000"},
        labels={"gpucampus.project": "gpucampus"},
    )
    try:
        container.reload()
        address = container.attrs["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
        while not answers(f"http://{address}:8888/user/bench/api"):
            if time.monotonic() - began > LIMIT_S:
                sys.exit(f"{image} did not answer in {LIMIT_S} s:\n{container.logs(tail=30).decode(errors='replace')}")
            time.sleep(0.01)
        took = time.monotonic() - began
        used = container.stats(stream=False, one_shot=True)
    finally:
        container.remove(force=True, v=True)
    used = cast("dict[str, Any]", used)
    return took, used["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9, used["memory_stats"]["usage"] / 1e6


def answers(address: str) -> bool:
    """Whether the server answers, whatever it says."""
    try:
        urllib.request.urlopen(address, timeout=2)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def main() -> int:
    """Measure each image several times and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = [variant.image for variant in read_catalog().usual]
    parser.add_argument(
        "images", nargs="*", default=usual, help="references; the catalog's usual variants by themselves"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    client = connect()
    network = client.networks.create(NETWORK, labels={"gpucampus.project": "gpucampus"})
    hub = client.containers.create(
        chosen.images[0],
        ["python3", "-c", HUB],
        labels={"gpucampus.project": "gpucampus"},
        network=NETWORK,
        hostname="hub",
    )
    rows = {}
    try:
        network.disconnect(hub)
        network.connect(hub, aliases=["hub"])
        hub.start()
        for image in chosen.images:
            first_answer(client, image)  # reads the image from the disk
            runs = [first_answer(client, image) for _ in range(chosen.runs)]
            rows[image] = [statistics.median(column) for column in zip(*runs, strict=True)]
            seconds, processor, memory = rows[image]
            print(f"{image:28} first answer {seconds:5.2f} s  processor {processor:5.2f} s  memory {memory:4.0f} MB")
    finally:
        hub.remove(force=True, v=True)
        network.remove()
    if chosen.json:
        chosen.json.write_text(json.dumps(rows) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
