"""`pidurable-nb lab`: a real JupyterLab on a copy of the tour, its check, and its refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from pidurable_nb.notebook.server import labserver

LAB = [sys.executable, "-m", "pidurable_nb", "lab"]


@pytest.mark.slow
def test_the_check_runs_the_tour_through_a_real_server() -> None:
    done = subprocess.run([*LAB, "--check", "--json"], capture_output=True, text=True, timeout=100, check=False)
    answer = json.loads(done.stdout)
    assert answer["ok"], answer
    assert done.returncode == 0
    assert answer["cells"] == 11
    assert not any(Path().iterdir())


@pytest.mark.slow
def test_the_check_names_the_cell_that_failed(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    copy = labserver.lay_out(folder)
    notebook = json.loads(copy.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code[1]["source"] = ["1 / 0"]
    copy.write_text(json.dumps(notebook))
    done = subprocess.run(
        [*LAB, "--check", "--json", "--folder", str(folder)], capture_output=True, text=True, timeout=100, check=False
    )
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ok"], answer["cells"]) == (1, False, 2)
    assert answer["failure"] == "cell 2: ZeroDivisionError: division by zero"


@pytest.mark.slow
def test_the_server_is_local_has_a_token_asks_no_news_and_ends_on_a_signal(tmp_path: Path) -> None:
    folder = tmp_path / "work" / "lab"
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    with subprocess.Popen(
        [*LAB, "--folder", str(folder), "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        while not any("token=" in line for line in lines):
            line = process.stderr.readline()
            assert line, lines
            lines.append(line.strip())
        url = httpx.URL(next(line for line in lines if "token=" in line))
        base = f"{url.scheme}://{url.host}:{url.port}"
        assert url.host == "127.0.0.1"
        assert url.path == "/lab/tree/00_tour.ipynb"
        with httpx.Client(base_url=base, trust_env=False) as stranger:
            assert stranger.get("/api/contents").status_code == httpx.codes.FORBIDDEN
        token = {"Authorization": f"token {url.params['token']}"}
        with httpx.Client(base_url=base, headers=token, trust_env=False) as owner:
            names = [item["name"] for item in owner.get("/api/contents").json()["content"]]
            shipped = sorted(path.name for path in labserver.find_tour().parent.glob("*.ipynb"))
            assert sorted(names) == shipped
            assert shipped[0] == labserver.TOUR
            assert len(shipped) > 3
            plugin = "@jupyterlab/apputils-extension:notification"
            settings = owner.get(f"/lab/api/settings/{plugin}").json()
            assert settings["schema"]["properties"]["fetchNews"]["default"] == "false"
            assert owner.get("/lab/api/news").json() == {"news": []}
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    answer = json.loads(out)
    assert (process.returncode, answer["ok"], answer["url"]) == (0, True, str(url))
    with pytest.raises(httpx.HTTPError):
        httpx.get(base, trust_env=False)


def test_a_copy_that_is_there_is_kept(tmp_path: Path) -> None:
    copy = labserver.lay_out(tmp_path)
    assert copy.read_bytes() == labserver.find_tour().read_bytes()
    copy.write_text("my own work")
    assert labserver.lay_out(tmp_path).read_text() == "my own work"


def test_without_the_notebook_extra_there_is_one_line() -> None:
    code = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'jupyterlab' else found(name, *more)\n"
        "from pidurable_nb.cli import main\n"
        "sys.exit(main(['lab']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'pidurable-nb[notebook]'" in done.stderr


def test_without_a_display_there_is_no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert not labserver.has_display()
    monkeypatch.setenv("DISPLAY", ":0")
    assert labserver.has_display()
