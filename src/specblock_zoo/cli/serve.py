"""`specblock serve`: the target behind an OpenAI-compatible address, drafted for."""

import importlib.util

from jsonargparse.typing import restricted_number_type
from transformers.utils.logging import disable_progress_bar

from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.adaptation.settings import AdaptationConfig
from specblock_zoo.cli.generate import DEFAULT_TARGET, DtypeName, dtype_of
from specblock_zoo.errors import ConfigurationError, MissingPackageError
from specblock_zoo.hub.pairing import check_pair
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference.prepack import optimize_on_cpu
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.local import load_target

NEEDED = ("fastapi", "uvicorn", "openai", "transformers.cli.serving")
Port = restricted_number_type("Port", int, [(">=", 1), ("<", 2**16)], docstring="A TCP port.")
SECONDS_TO_FINISH = 5


def serve(
    target: str = DEFAULT_TARGET,
    drafter: str | None = None,
    host: str = "127.0.0.1",
    port: Port = 8000,  # type: ignore[valid-type]  # made by a call; an int to mypy's eyes all the same
    dtype: DtypeName = "auto",
    adapt: bool = False,
) -> None:
    """Serves a target over HTTP, OpenAI-compatible; a drafter makes it faster and leaves the answers as they are.

    Ctrl-C ends it: running answers get a few seconds to finish.

    Args:
        target: name of an embedded target, a model folder or a Hub repository; what clients pass as `model`.
        drafter: name in the zoo (the tag may be left out) or a folder; without one the target decodes alone.
        host: address to listen on; others than this machine's own let others in.
        port: port to listen on.
        dtype: of both models; auto takes bfloat16 where the device multiplies it natively, else float32.
        adapt: let the drafter learn from what it serves, when it pays; answers stay as they are.

    Raises:
        ConfigurationError: there is no drafter to adapt.
        MissingPackageError: the server's packages are not installed.
        UnknownNameError: no such drafter.
        UnsupportedOptionError: a drafter that cannot adapt: another kind than SpecBlock.
        TargetMismatchError: the drafter was made for another target, or for its tokenizer before a change.
    """
    check_packages()
    if adapt and drafter is None:
        raise ConfigurationError("No drafter is named, so nothing can adapt.", "Add --drafter NAME.")
    import uvicorn

    from specblock_zoo.cli.server import build_app

    disable_progress_bar()
    model, tokenizer = load_target(target, dtype=dtype_of(dtype))
    assistant: Drafter | None = load_drafter(drafter, dtype=model.dtype) if drafter is not None else None
    if assistant is not None:
        check_pair(model, tokenizer, assistant)
    packed = optimize_on_cpu(model)
    if adapt and assistant is not None:
        assistant = AdaptiveDrafter(assistant, AdaptationConfig(prepack=packed))
    elif assistant is not None:
        optimize_on_cpu(assistant)
    app = build_app(target, model, tokenizer, assistant)
    uvicorn.run(app, host=host, port=port, log_level="info", timeout_graceful_shutdown=SECONDS_TO_FINISH)


def check_packages() -> None:
    """Raises `MissingPackageError` naming the packages of the `serve` extra that are absent."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingPackageError(
            f"Serving needs {', '.join(NEEDED)}; {', '.join(absent)} cannot be found.",
            "Install them, in the versions they work in: pip install --upgrade 'specblock-zoo[serve]'.",
        )
