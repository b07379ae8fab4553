"""A person's first hour, in a real browser: sign in, choose, start, compute, stop, start again, find the file.

Screenshots of each stage are kept in the folder that GPUCAMPUS_SCREENSHOTS names, else in pytest's temporary folder.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from spawner.settings import load

pytestmark = [pytest.mark.docker, pytest.mark.hub, pytest.mark.browser, pytest.mark.timeout(420)]

START_MS = 150_000  # a first start on two busy cores, JupyterLab's own start included
STEP_MS = 30_000
CHROMIUM = "/usr/bin/chromium"
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")  # Chromium as root, without a display

# The hub streams how far a start has come; the page goes on by itself, so the messages are kept where they arrive.
HEAR_PROGRESS = """
window.EventSource = class extends window.EventSource {
  constructor(...args) {
    super(...args);
    this.addEventListener("message", (event) => console.info("progress: " + JSON.parse(event.data).message));
  }
};
"""

LOOK_AROUND = """
import glob, json, pathlib
import pynvml

def first(*names):
    for name in names:
        path = pathlib.Path("/sys/fs/cgroup", name)
        if path.exists():
            return path.read_text().split()
    return []

pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
(pathlib.Path.home() / "first-light.txt").write_text("TOKEN")
print("FOUND", json.dumps({
    "nodes": sorted(glob.glob("/dev/nvidia*")),
    "uuids": [pynvml.nvmlDeviceGetUUID(handle) for handle in handles],
    "memory": first("memory.max", "memory/memory.limit_in_bytes"),
    "cpu": first("cpu.max") or first("cpu/cpu.cfs_quota_us") + first("cpu/cpu.cfs_period_us"),
    "pids": first("pids.max", "pids/pids.max"),
}), "END")
"""


@dataclass(frozen=True)
class Visit:
    """One person's browser window, with what it heard and where its pictures go."""

    page: Page
    folder: Path
    progress: list[str]

    def shot(self, name: str) -> None:
        self.page.screenshot(path=self.folder / f"{name}.png", full_page=True)


@pytest.fixture
def visit(tmp_path: Path) -> Iterator[Visit]:
    folder = Path(os.environ.get("GPUCAMPUS_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(STEP_MS)
        page.add_init_script(HEAR_PROGRESS)
        heard: list[str] = []
        page.on("console", lambda message: heard.append(message.text))
        window = Visit(page=page, folder=folder, progress=heard)
        try:
            yield window
        finally:
            # also after a failure: the last thing the person saw, and what the page said
            window.shot("99-last")
            (folder / "console.txt").write_text("\n".join(heard), encoding="utf-8")
            browser.close()


def sign_in(visit: Visit, url: str, name: str, password: str) -> None:
    """Go from the hub to the identity provider's page and back."""
    page = visit.page
    page.goto(url)
    button = page.get_by_role("button", name=re.compile("^Sign in with"))
    field = page.locator("input[type=password]")
    expect(button.or_(field)).to_be_visible()
    if button.is_visible():
        button.click()
    expect(field).to_be_visible()
    page.get_by_label("Account").fill(name)
    field.fill(password)
    visit.shot("01-sign-in")
    page.get_by_role("button", name="Sign in", exact=True).click()


def start(visit: Visit, lab: str) -> None:
    """Press Start and wait for JupyterLab's address, then for JupyterLab."""
    visit.page.get_by_role("button", name="Start", exact=True).click()
    visit.page.wait_for_url("**/spawn-pending/**")
    visit.shot("04-starting")
    visit.page.wait_for_url(f"{lab}**", timeout=START_MS, wait_until="commit")
    expect(visit.page.locator("#jp-top-panel")).to_be_visible(timeout=START_MS)


def stop(visit: Visit, url: str) -> None:
    """Stop the server from the hub's control panel."""
    visit.page.goto(f"{url}/hub/home")
    visit.page.get_by_role("button", name="Stop My Server").click()
    expect(visit.page.get_by_text("Your server is stopped.")).to_be_visible(timeout=STEP_MS * 2)


def run_cell(visit: Visit, code: str) -> dict[str, Any]:
    """Open a notebook from the launcher, run one cell, and read the object it prints."""
    page = visit.page
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click(timeout=START_MS)
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first).to_be_visible(timeout=START_MS)
    editor = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
    editor.click()
    page.keyboard.insert_text(code)  # as pasted: typed keys would close brackets twice
    # JupyterLab shows "idle" before the kernel is connected, and drops a cell that is run then without a word.
    ran = page.locator(".jp-CodeCell .jp-InputPrompt").filter(has_text=re.compile(r"\[[*\d]")).first
    for _ in range(20):
        editor.press("Control+Enter")
        with suppress(AssertionError):
            expect(ran).to_be_visible(timeout=2000)
            break
    output = page.locator(".jp-CodeCell .jp-OutputArea-output").filter(has_text=re.compile("END|Error")).first
    expect(output).to_be_visible(timeout=START_MS)
    text = output.text_content() or ""
    found = re.search(r"FOUND (\{.*\}) END", text)
    assert found, text
    return cast("dict[str, Any]", json.loads(found[1]))


def test_person_signs_in_starts_computes_and_finds_the_file_after_a_restart(demo_hub: Any, visit: Visit) -> None:
    page = visit.page
    settings = load(demo_hub.state / "settings.toml")
    role = settings.roles["student"]
    lab = f"http://student.localhost:{urlsplit(demo_hub.url).port}/user/student/lab"

    sign_in(visit, demo_hub.url, "student", demo_hub.accounts["student"])
    expect(page.get_by_role("heading", name="Start a server")).to_be_visible()
    expect(page.locator("[data-gpucampus=simulated]")).to_be_visible()
    offered = [field.get_attribute("value") for field in page.locator("input[name=gpus]").all()]
    assert offered == ["none", "1", "mig:3g.20gb"], "what the role has, and no shares"
    expect(page.locator("[data-gpu]")).to_have_count(4)

    page.locator("#gc-gpus-1").evaluate("field => { field.value = '9' }")
    page.locator("input[name=gpus][value='9']").check()
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("alert").get_by_text(re.compile("^You asked for 9 GPU"))).to_be_visible()
    expect(page.locator("#gc-gpus-none")).to_be_checked()  # the refused choice is not remembered
    visit.shot("02-refused")

    page.locator("#gc-variant-cpu").check()
    page.locator("#gc-gpus-1").check()
    page.locator("#gc-memory").select_option("2G")
    visit.shot("03-choose")
    start(visit, lab)
    said = "\n".join(line for line in visit.progress if line.startswith("progress: "))
    assert "Your choice is allowed" in said
    assert "You hold 1 GPU" in said
    visit.shot("05-jupyterlab")

    token = f"written by the first server {os.urandom(8).hex()}"
    found = run_cell(visit, LOOK_AROUND.replace("TOKEN", token))
    visit.shot("06-cell")
    assert len([node for node in found["nodes"] if re.fullmatch(r"/dev/nvidia\d+", node)]) == 1
    assert len(found["uuids"]) == 1
    assert found["uuids"][0].startswith("GPU-")
    assert found["memory"] == [str(2 << 30)]
    quota, period = (int(number) for number in found["cpu"])
    assert quota / period == pytest.approx(role.cpus)
    assert found["pids"] == [str(settings.containers.pids)]

    stop(visit, demo_hub.url)
    visit.shot("07-stopped")
    page.get_by_role("button", name="Start My Server").click()
    expect(page.locator("#gc-variant-cpu")).to_be_checked()
    expect(page.locator("#gc-gpus-1")).to_be_checked()
    expect(page.locator("#gc-memory")).to_have_value("2G")
    start(visit, lab)
    page.goto(f"{lab}/tree/first-light.txt?reset")
    expect(page.locator(".jp-FileEditor .cm-content")).to_contain_text(token, timeout=START_MS)
    visit.shot("08-file-is-there")
    stop(visit, demo_hub.url)
