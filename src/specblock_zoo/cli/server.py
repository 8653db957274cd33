"""An OpenAI-compatible server around one target and its drafter: `transformers serve` with the drafter put in.

The only file that knows the internals of transformers' server, which are not a public interface; its tests notice when
they move.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from torch import Tensor, manual_seed
from torch.random import fork_rng
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import GenerationState, _GenerationCancelled

from specblock_zoo.errors import ConfigurationError, PromptTooLongError, UnsupportedOptionError
from specblock_zoo.inference.stats import DecodeStats
from specblock_zoo.models.base import Drafter

TEXT = {"type": "text"}
ROUTES = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health"}
"""What is kept of transformers' server; the rest loads other models or answers in other ways."""
CLIENT_MISTAKES = (KeyError, TypeError, ValueError, AttributeError)
"""What transformers' handlers raise for fields of the wrong kind, before anything is generated."""
RANGES = {
    "max_tokens": (1, sys.maxsize),
    "max_completion_tokens": (1, sys.maxsize),
    "seed": (0, sys.maxsize),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "frequency_penalty": (-0.99, 2.0),
}
"""As OpenAI's, but for the penalty: transformers multiplies by one more than it, which must stay above 0."""
WHOLE = {"max_tokens", "max_completion_tokens", "seed"}
"""Of them those that count."""
IGNORED = {"n": (None, 1), "logprobs": (None, False, 0), "presence_penalty": (None, 0), "response_format": (None, TEXT)}
"""Fields transformers' server does not read, with the values for which that makes no difference to the answer."""
SEED = "_request_seed"
"""Where a request's seed waits on its generation configuration."""


class ServeStats:
    """Sums over all requests since the start; written by the generating thread, read by any."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, **amounts: float) -> None:
        """Adds to the named sums."""
        with self._lock:
            self._sums.update(amounts)

    def add_answer(self, tokens: int, seconds: float, decoded: DecodeStats | None) -> None:
        """Counts one finished answer; `decoded` where it was drafted."""
        self.add(answers=1, tokens=tokens, seconds=seconds)
        if decoded is not None:
            self.add(rounds=decoded.rounds, committed=decoded.committed, draft_seconds=decoded.draft_ms / 1000)
            self.add(round_seconds=(decoded.draft_ms + decoded.verify_ms + decoded.other_ms) / 1000)

    @property
    def sums(self) -> dict[str, float]:
        """A copy of the sums."""
        with self._lock:
            return dict(self._sums)

    def text(self) -> str:
        """Prometheus text: the sums as counters, and their quotients (0 before the first answer) as gauges."""
        sums = Counter(self.sums)
        gauges = {
            "tau": sums["committed"] / (sums["rounds"] or 1),
            "tokens_per_second": sums["tokens"] / (sums["seconds"] or 1),
            "draft_share": sums["draft_seconds"] / (sums["round_seconds"] or 1),
        }
        answers = ("answers", "cancelled", "failed", "tokens", "seconds")
        names = (*answers, "rounds", "committed", "draft_seconds", "round_seconds")
        lines = [f"# TYPE specblock_{name}_total counter\nspecblock_{name}_total {sums[name]:g}" for name in names]
        lines += [f"# TYPE specblock_{name} gauge\nspecblock_{name} {value:g}" for name, value in gauges.items()]
        return "\n".join(lines) + "\n"


class DraftedTarget:
    """The target as transformers' server sees it: its `generate` puts the drafter in, and counts."""

    def __init__(self, model: PreTrainedModel, drafter: Drafter | None, stats: ServeStats) -> None:
        self._model, self._drafter, self._stats = model, drafter, stats

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def check(self, inputs: Mapping[str, Tensor]) -> None:
        """Raises `PromptTooLongError` when the prompt alone fills the target's positions."""
        length, positions = inputs["input_ids"].shape[1], self._model.config.max_position_embeddings
        if length >= positions:
            raise PromptTooLongError(
                f"The prompt has {length} tokens; the target has {positions} positions.", "Shorten the conversation."
            )

    def generate(self, **inputs: Any) -> Tensor:
        """`model.generate(..., assistant_model=drafter)`.

        Raises:
            PromptTooLongError: the prompt alone fills the target's positions.
        """
        length, positions = inputs["input_ids"].shape[1], self._model.config.max_position_embeddings
        self.check(inputs)
        config = inputs["generation_config"]
        config.max_new_tokens = min(config.max_new_tokens or positions, positions - length)
        seed = vars(config).pop(SEED, None)
        before = time.perf_counter()
        try:
            call: Any = self._model.generate
            # Where the text is drawn: requests that wait draw nothing, and those without a seed do not see it.
            with fork_rng(enabled=seed is not None):
                if seed is not None:
                    manual_seed(seed)
                ids: Tensor = call(**inputs, assistant_model=self._drafter)
        except BaseException as cause:
            self._stats.add(**{"cancelled" if isinstance(cause, _GenerationCancelled) else "failed": 1})
            raise
        decoded = self._drafter.last_stats if self._drafter is not None else None
        self._stats.add_answer(ids.shape[1] - length, time.perf_counter() - before, decoded)
        return ids


def check_body(body: Mapping[str, Any]) -> None:
    """Refuses what would fail in the middle of a stream, or be left out without a word.

    Raises:
        ConfigurationError: a number out of range, or stop strings that are none.
        UnsupportedOptionError: a field that would have changed the answer.
    """
    for name, (low, high) in RANGES.items():
        value = body.get(name)
        number = value if value is None or isinstance(value, int) else float(value)
        if number is not None and not (low <= number <= high and (name not in WHOLE or number == int(number))):
            kind = "a whole number from " if name in WHOLE else ""
            raise ConfigurationError(f"{name} is {value}; expected {kind}{low}..{high}.", "Correct the request.")
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise ConfigurationError(f"stop is {stop!r}; expected text, or a list of it.", "Correct the request.")
    for name, harmless in IGNORED.items():
        if body.get(name) not in harmless:
            raise UnsupportedOptionError(f"{name} = {body[name]!r} is not supported here.", f"Leave {name} out.")


class Checked:
    """Before transformers' handlers: requests are refused before the answer begins, also where it is streamed."""

    def _build_generation_config(self, body: dict[str, Any], *rest: Any, **more: Any) -> Any:
        check_body(body)
        # Transformers would set the seed at once, in the middle of another request's text.
        unseeded = {name: value for name, value in body.items() if name != "seed"}
        config: Any = super()._build_generation_config(unseeded, *rest, **more)  # type: ignore[misc]  # of the handler
        if body.get("seed") is not None:
            setattr(config, SEED, int(body["seed"]))
        if float(body.get("temperature") or 0.0) > 0.0:
            # Transformers leaves this to the target's own configuration, which may say greedy.
            config.do_sample = True
        return config

    def _streaming(self, *places: Any, **names: Any) -> Any:
        _, model, _, _, inputs, *_ = places
        model.check(inputs)
        return super()._streaming(*places, **names)  # type: ignore[misc]  # of the handler


class CheckedChat(Checked, ChatCompletionHandler):
    """`/v1/chat/completions`."""


class CheckedCompletion(Checked, CompletionHandler):
    """`/v1/completions`."""


class OneModel(ModelManager):
    """A model manager that has one model, under the name it was asked for."""

    def __init__(self, name: str, model: DraftedTarget, tokenizer: PreTrainedTokenizerBase) -> None:
        self._only: Any = (model, tokenizer)
        super().__init__(force_model=name)

    @staticmethod
    def process_model_name(model_id: str) -> str:
        """Names have no revision here."""
        return model_id

    def load_model_and_processor(self, *args: Any, **kwargs: Any) -> Any:
        """The one pair there is."""
        return self._only

    def list_models(self, cache_dir: str | None = None) -> list[dict[str, Any]]:
        """The one model there is."""
        return [{"id": self.force_model, "object": "model", "created": 0, "owned_by": "specblock"}]


def build_app(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, drafter: Drafter | None
) -> FastAPI:
    """The application: chat and text completions, streamed or not, `/v1/models`, `/health` and `/metrics`.

    Args:
        name: what clients pass as `model`.
        model, tokenizer, drafter: fit together; one request is generated at a time.
    """
    stats = ServeStats()
    manager, state = OneModel(name, DraftedTarget(model, drafter, stats), tokenizer), GenerationState()
    chat, completion = CheckedChat(manager, state), CheckedCompletion(manager, state)
    absent: Any = None
    app = build_server(manager, chat, completion, absent, absent, absent, state)
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) in ROUTES]

    @app.get("/metrics")
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(stats.text())

    async def refuse(_: Request, mistake: Exception) -> JSONResponse:
        message = f"{type(mistake).__name__}: {mistake}"
        return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status_code=400)

    for kind in CLIENT_MISTAKES:
        app.add_exception_handler(kind, refuse)
    return app
