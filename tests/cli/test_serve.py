"""`specblock serve`, as a user types it."""

import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.cli import serve
from specblock_zoo.cli.main import USER_ERROR, main
from specblock_zoo.errors import MissingPackageError
from tests.support.tiny_pair import TinyFolders


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "NEEDED", ("torch", "not_a_package_of_ours"))
    with pytest.raises(MissingPackageError, match=r"not_a_package_of_ours cannot be found.*\[serve\]"):
        serve.check_packages()


def test_a_drafter_nobody_knows(tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("transformers.cli.serving")
    assert main(["serve", "--target", str(tiny_folders.target), "--drafter", "specblock-nobody"]) == USER_ERROR
    assert "specblock-nobody" in capsys.readouterr().err


def test_there_must_be_something_to_adapt(tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("transformers.cli.serving")
    assert main(["serve", "--target", str(tiny_folders.target), "--adapt"]) == USER_ERROR
    assert "nothing can adapt" in capsys.readouterr().err


def test_an_adapting_drafter_is_what_serves(tiny_folders: TinyFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    server = pytest.importorskip("specblock_zoo.cli.server")
    served = []
    monkeypatch.setattr(server, "build_app", lambda *parts: served.extend(parts))
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: None)
    serve.serve(str(tiny_folders.target), str(tiny_folders.drafter), dtype="float32", adapt=True)
    assert isinstance(served[3], AdaptiveDrafter)


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_ports_are_ports(port: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", f"--port={port}"])
    assert left.value.code == USER_ERROR


def test_an_interrupt_ends_it_cleanly(tiny_folders: TinyFolders) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("transformers.cli.serving")
    pytest.importorskip("fastapi")
    pytest.importorskip("openai")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "--target", str(tiny_folders.target), "--drafter", str(tiny_folders.drafter), f"--port={port}"]
    process = subprocess.Popen([sys.executable, "-m", "specblock_zoo.cli.main", *words], stderr=subprocess.PIPE)
    try:
        for _ in range(600):
            assert process.poll() is None, process.stderr.read().decode()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
                    assert answer.status == 200
                break
            except OSError:
                time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) in (0, -signal.SIGINT, 130)
        assert b"Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.stderr.close()
