"""`specblock plan` prices the shipped configurations at their real shapes, without weights, cache or accelerator."""

from pathlib import Path

import pytest
import yaml
from jsonargparse import Namespace

from specblock_zoo.cli.main import main
from specblock_zoo.cli.plan import batching_of, devices_per_node, number, target_shapes
from specblock_zoo.errors import ConfigurationError, UnknownNameError
from specblock_zoo.targets.registry import family_of
from tests.support import REPOSITORY
from tests.support.fit import QUIET

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]
CONFIGS = REPOSITORY / "configs" / "train"
# Summed by hand. The published tensors have 702,599,936 and 652,268,288 with one shift; two have 2 H^2 more.
PARAMETERS = {
    "smollm2-135m": 14_609_920,
    "smollm2-135m-gpu": 14_609_920,
    "smollm2-135m-eagle3": 9_808_128,
    "smollm2-135m-medusa": 4 * (576**2 + 576 + 8192 * 576),
    "llama-3.1-8b": 702_599_936 + 2 * 4096**2,
    "qwen3-8b": 652_268_288 + 2 * 4096**2,
    "qwen3-32b": 1_402_536_704,
}
TARGET_PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "smollm2-135m-gpu": 134_515_008,
    "smollm2-135m-eagle3": 134_515_008,
    "smollm2-135m-medusa": 134_515_008,
    "llama-3.1-8b": 8_030_261_248,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
}


@pytest.mark.parametrize(("devices", "count"), [("auto", 1), ("-1", 1), ("4", 4), ("0,2", 2), ("[0, 1, 2]", 3)])
def test_devices_are_counted(devices: str, count: int) -> None:
    assert devices_per_node(devices) == count


def test_devices_that_are_no_number_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'foo'"):
        devices_per_node("foo")


def test_every_configuration_is_priced_here() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(PARAMETERS)


def test_the_gpu_trains_the_drafter_that_the_cpu_trains() -> None:
    cpu, gpu = (yaml.safe_load((CONFIGS / f"smollm2-135m{end}.yaml").read_text())["model"] for end in ("", "-gpu"))
    assert gpu.keys() == cpu.keys()
    for part in ("target", "initialise", "drafter", "objective"):
        assert gpu[part] == cpu[part]


@pytest.mark.parametrize("name", PARAMETERS)
def test_real_shapes_give_the_known_numbers(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    with pytest.raises(SystemExit) as ended:
        main(["plan", f"--config={CONFIGS / name}.yaml", "--assumed.train_tokens=2000000"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    for figure in (f"{PARAMETERS[name]:,}", f"{TARGET_PARAMETERS[name]:,}", "2,000,000", "device hours"):
        assert figure in said
    if not name.startswith("smollm2-135m"):
        assert "= 96 sequences of 1,024" in said


@pytest.mark.parametrize("name", PARAMETERS)
def test_tap_layers_are_the_family_default_and_the_recipe_is_the_papers(name: str) -> None:
    settings = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    drafter, target = settings["model"]["drafter"], target_shapes(settings["model"]["target"])
    default = list(family_of(target).tap_layers(target))
    assert drafter.get("tap_layers", default) == default
    if "model_type" not in drafter:
        assert (drafter["block_width"], drafter["num_hidden_layers"]) == (4, 2)
    if not name.startswith("smollm2-135m"):
        assert settings["model"]["adamw"]["warmup_fraction"] == 0.015
        assert drafter["draft_vocab_size"] == 32_000
        assert len(settings["model"]["objective"]["block_sampling"]) == 2


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--model.target=/nowhere", "/nowhere"),
        ("--model.drafter.blok_width=3", "blok_width"),
        ("--trainer.max_epochs=null", "max_epochs is None"),
    ],
)
def test_mistakes_are_one_paragraph(flag: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"--config={CONFIGS / 'smollm2-135m.yaml'}", flag]) == 2
    paragraph = capsys.readouterr().err.strip().splitlines()[-1]
    assert paragraph.startswith("error: ")
    assert words in paragraph


def options(**changes: object) -> tuple[Namespace, Namespace]:
    trainer = {"devices": 4, "num_nodes": 2, "accumulate_grad_batches": 3, "max_epochs": 5, "precision": "bf16-mixed"}
    return Namespace(batch_tokens=100, max_length=None), Namespace(**{**trainer, **changes})


def test_an_update_is_counted_over_nodes_devices_and_accumulation() -> None:
    batching = batching_of(*options())
    assert (batching.tokens_per_update, batching.max_length, batching.bytes_per_value) == (2400, 1024, 2)
    assert batching_of(*options(devices="auto", precision=32)).devices == 2
    assert batching_of(*options(devices="0,3,5")).devices == 6
    with pytest.raises(ConfigurationError, match="max_epochs is -1"):
        batching_of(*options(max_epochs=-1))


def test_shapes_of_a_folder_are_read(tmp_path: Path) -> None:
    target_shapes("Qwen/Qwen3-8B").save_pretrained(tmp_path)
    assert target_shapes(str(tmp_path)).intermediate_size == 12_288
    with pytest.raises(UnknownNameError, match="missing"):
        target_shapes(str(tmp_path / "missing"))


@pytest.mark.parametrize(("value", "text"), [(12, "12"), (0.12345, "0.123"), (98_304.0, "98,304"), (2.5e13, "2.5e+13")])
def test_numbers_are_readable(value: float, text: str) -> None:
    assert number(value) == text
