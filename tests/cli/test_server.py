"""The server answers as plain `generate` answers, to the `openai` client and over the loopback device."""

import functools
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.targets.local import load_target
from tests.support.tiny_pair import POSITIONS, TinyFolders

openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
pytest.importorskip("transformers.cli.serving")

NAME, TOKENS = "tiny", 12


class Running:
    """A served pair, and what the target answers on its own."""

    def __init__(self, folders: TinyFolders) -> None:
        from specblock_zoo.cli.server import build_app

        self.model, self.tokenizer = load_target(str(folders.target), dtype=torch.float32)
        self.alone, _ = load_target(str(folders.target), dtype=torch.float32)
        drafter = load_drafter(str(folders.drafter), dtype=torch.float32)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        app = build_app(NAME, self.model, self.tokenizer, drafter)
        self.server = uvicorn.Server(
            uvicorn.Config(app, port=self.port, log_level="critical", timeout_graceful_shutdown=5)
        )
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        for _ in range(3000):
            if self.server.started:
                break
            time.sleep(0.01)
        assert self.server.started
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=60
        )

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=20)
        assert not self.thread.is_alive(), "the server did not shut down"

    def chat(self, text: str, **options: Any) -> Any:
        settings = {"model": NAME, "max_tokens": TOKENS, "temperature": 0.0, **options}
        return self.client.chat.completions.create(messages=[{"role": "user", "content": text}], **settings)

    def plain(self, text: str) -> str:
        message = [{"role": "user", "content": text}]
        inputs = self.tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = self.alone.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
        return self.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}


@pytest.fixture(scope="module")
def running(tiny_folders: TinyFolders) -> Iterator[Running]:
    served = Running(tiny_folders)
    yield served
    served.stop()


def test_answers_are_plain_generates(running: Running) -> None:
    answer = running.chat("What is it?")
    assert answer.choices[0].message.content == running.plain("What is it?")
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.completion_tokens <= TOKENS


def test_streamed_answers_are_the_same(running: Running) -> None:
    chunks = list(running.chat("Tell me more", stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == running.plain("Tell me more")
    assert len(chunks) > 3, "streamed, not sent at once"


def test_text_completions(running: Running) -> None:
    answer = running.client.completions.create(model=NAME, prompt="Once upon", max_tokens=6, temperature=0.0)
    ids = running.tokenizer("Once upon", return_tensors="pt").input_ids
    expected = running.alone.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
    assert answer.choices[0].text == running.tokenizer.decode(expected, skip_special_tokens=True)


def test_one_model_is_listed(running: Running) -> None:
    assert [model.id for model in running.client.models.list()] == [NAME]


def test_metrics_add_up(running: Running) -> None:
    before = running.metrics()
    tokens = sum(running.chat(text).usage.completion_tokens for text in ("one", "two"))
    after = running.metrics()
    assert after["specblock_answers_total"] == before["specblock_answers_total"] + 2
    assert after["specblock_tokens_total"] == before["specblock_tokens_total"] + tokens
    assert after["specblock_tau"] >= 1.0
    assert 0.0 < after["specblock_draft_share"] < 1.0
    assert after["specblock_tokens_per_second"] > 0.0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "another"}, 400),
        ({"messages": "no list"}, 400),
        ({"messages": [{"content": "no role"}]}, 400),
        ({"temperature": "warm"}, 400),
        ({"max_tokens": "many"}, 400),
        ({"not_a_field": 1}, 422),
        ({"messages": [{"role": "user", "content": "x" * (POSITIONS + 1)}]}, 400),
        ({"max_tokens": 0}, 400),
        ({"max_completion_tokens": -3}, 400),
        ({"max_tokens": "inf"}, 400),
        ({"max_tokens": 2.5}, 400),
        ({"seed": 2**64}, 400),
        ({"seed": -1}, 400),
        ({"temperature": -1.0}, 400),
        ({"top_p": 1.5}, 400),
        ({"frequency_penalty": -1.0}, 400),
        ({"stop": [""]}, 400),
        ({"stop": 7}, 400),
        ({"n": 2}, 400),
        ({"response_format": {"type": "json_object"}}, 400),
        ({"logprobs": True}, 400),
        ({"generation_config": "not JSON"}, 400),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_are_the_clients_fault(running: Running, body: dict[str, Any], status: int, stream: bool) -> None:
    """Also where the answer is streamed, whose status is sent before its text."""
    whole = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "stream": stream, **body}
    with pytest.raises(openai.APIStatusError) as caught:
        running.client.post("/chat/completions", body=whole, cast_to=object)
    assert caught.value.status_code == status


def test_bad_requests_leave_the_server_as_it_was(running: Running) -> None:
    before = running.metrics()
    with pytest.raises(openai.BadRequestError, match="num_return_sequences"):
        running.chat("hi", extra_body={"generation_config": '{"num_return_sequences": 2, "do_sample": true}'})
    assert running.chat("still here?").choices[0].message.content == running.plain("still here?")
    after = running.metrics()
    assert after["specblock_failed_total"] == before["specblock_failed_total"] + 1
    assert after["specblock_cancelled_total"] == before["specblock_cancelled_total"]


def test_a_temperature_samples_and_the_seed_decides(running: Running) -> None:
    texts = [running.chat("hi", temperature=1.0, seed=seed).choices[0].message.content for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len({*texts, running.plain("hi")}) > 2


def test_a_seed_decides_whoever_else_is_asking(running: Running) -> None:
    """Requests that arrive during an answer neither move its draws nor begin with its seed."""

    def ask(seed: int | None) -> str:
        return (
            running.chat("hi", temperature=1.0, **({} if seed is None else {"seed": seed})).choices[0].message.content
        )

    alone = {seed: ask(seed) for seed in range(4)}
    seeds = [0, 1, None, 2, 3, None] * 4
    with ThreadPoolExecutor(max_workers=6) as clients:
        together = list(zip(seeds, clients.map(ask, seeds), strict=True))
    assert all(text == alone[seed] for seed, text in together if seed is not None)
    assert len({text for seed, text in together if seed is None}) > 4


def test_what_could_load_another_model_is_gone(running: Running) -> None:
    for path in ("/load_model", "/reset", "/v1/responses"):
        with pytest.raises(openai.NotFoundError):
            openai.OpenAI(base_url=f"http://127.0.0.1:{running.port}", api_key="none", max_retries=0).post(
                path, body={"model": "another"}, cast_to=object
            )


def test_a_client_that_leaves_frees_its_place(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that needs seconds for this answer, so that nobody can have waited for its end."""
    forward, forwards = running.model.forward, []

    @functools.wraps(forward)
    def slow(*args: Any, **kwargs: Any) -> Any:
        forwards.append(1)
        time.sleep(0.05)
        return forward(*args, **kwargs)

    before, wanted = running.metrics(), POSITIONS - 40
    monkeypatch.setattr(running.model, "forward", slow)
    config = f'{{"max_new_tokens": {wanted}, "min_new_tokens": {wanted}, "do_sample": false}}'
    stream = running.chat("a long story", stream=True, extra_body={"generation_config": config}, max_tokens=wanted)
    next(iter(stream))
    stream.response.close()
    assert running.chat("next, please").choices[0].message.content == running.plain("next, please")
    after = running.metrics()
    assert after["specblock_cancelled_total"] == before["specblock_cancelled_total"] + 1
    assert after["specblock_answers_total"] == before["specblock_answers_total"] + 1
    assert len(forwards) < wanted / 2


@pytest.mark.parametrize("requests", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_many_clients_get_no_wrong_answer(running: Running, requests: int) -> None:
    prompts = [f"question {index % 10}" for index in range(requests)]
    expected = {prompt: running.plain(prompt) for prompt in set(prompts)}
    with ThreadPoolExecutor(max_workers=8) as clients:
        answers = list(clients.map(lambda prompt: running.chat(prompt).choices[0].message.content, prompts))
    assert answers == [expected[prompt] for prompt in prompts]
