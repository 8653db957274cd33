"""Cards say what entry and results say, and the checkout's cards are up to date."""

import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from specblock_zoo.bench.records import write_results
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.hub import card
from specblock_zoo.hub.entry import Reported, TrainingOverlap, write_entry
from specblock_zoo.models.registry import DRAFTERS
from tests.support.measured import NAME, entry, results
from tests.support.tiny_pair import TinyFolders

ROOT = Path(__file__).parents[2]
MEASURED = card.MeasuredEntry(entry(), results())


def write_zoo(root: Path) -> Path:
    folder = root / "zoo" / NAME
    folder.mkdir(parents=True)
    write_entry(entry(), folder)
    write_results(results(), folder)
    (root / "README.md").write_text(f"# A zoo\n\n{card.BLOCK_BEGIN}\nold\n{card.BLOCK_END}\n\nmore\n")
    return folder


def test_the_metadata_reads_back() -> None:
    data = ModelCard(str(card.drafter_card(MEASURED))).data
    assert (data.base_model, data.library_name, data.license) == ("someone/tiny", "specblock-zoo", "apache-2.0")
    assert data.model_name == NAME
    measured = {(result.dataset_name, result.metric_type): result.metric_value for result in data.eval_results}
    assert measured[("chat", "accepted_length")] == pytest.approx(38 / 15, abs=1e-3)
    assert measured[("code", "speedup")] == pytest.approx(1.6)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_card_is_tagged_with_its_own_kind(kind: str) -> None:
    data = card.card_data(card.MeasuredEntry(entry().model_copy(update={"kind": kind}), None))
    assert set(data.tags) & set(DRAFTERS) == {kind}


@pytest.mark.parametrize(
    ("shared", "left_out", "said"),
    [
        (0, False, "None of 500 training records share a run of 13 words with one of 90 prompts of chat, code, or"),
        (7, True, "7 of 500 training records, which were left out, share a run"),
        (7, False, "7 of 500 training records, which were trained on, share a run"),
    ],
)
def test_the_card_says_what_was_found_of_the_benchmark_in_the_training_text(
    shared: int, left_out: bool, said: str
) -> None:
    trained = entry().training
    assert trained is not None
    found = TrainingOverlap(words=13, records=500, shared=shared, prompts=90, tasks=("chat", "code"), left_out=left_out)
    known = entry().model_copy(update={"training": trained.model_copy(update={"overlap": found})})
    assert said in str(card.drafter_card(card.MeasuredEntry(known, None)))


def test_the_card_claims_nothing_of_the_training_text_that_was_not_checked() -> None:
    text = str(card.drafter_card(MEASURED))
    assert "was not checked; `specblock overlap" in text
    assert "no benchmark prompt" not in text


def test_the_card_states_numbers_data_and_provenance() -> None:
    text = str(card.drafter_card(MEASURED))
    assert "| chat | 2 | 2/2 | 2.53 | 1.90 (50%) | 1.50 [1.50, 1.50] | - | 25% | 13.3 / 37.3 / 2.7 |" in text
    for fact in (
        "| mawps | MIT | 900 |",
        "torch 2.13.0",
        "specblock fit -c configs/train/tiny.yaml",
        "(plain_masked), the median over prompts, over several tasks the mean of their medians,",
    ):
        assert fact in text
    assert "[More Information Needed]" not in text
    assert not re.search(r"\{\{|\{%", text)


def test_the_usage_snippet_is_python_and_names_the_entry() -> None:
    text = str(card.drafter_card(MEASURED))
    snippet = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippet is not None
    compile(snippet[1], "card", "exec")
    assert f'load_drafter("{NAME}"' in snippet[1]
    assert "assistant_model=drafter" in snippet[1]


def test_the_usage_snippet_runs(tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]) -> None:
    text = str(card.drafter_card(MEASURED, source=str(tiny_folders.drafter)))
    snippet = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippet is not None
    exec(snippet[1].replace("someone/tiny", str(tiny_folders.target)), {})
    assert re.search(r"\d\.\d", capsys.readouterr().out)


def test_numbers_of_others_are_marked_as_theirs() -> None:
    number = Reported(figure="tau", value=4.41, setting="A100", source="the paper")
    published = entry().model_copy(
        update={
            "status": "published",
            "training": None,
            "repository": "a/b",
            "reported": (number,),
            "licence": "unclear",
        }
    )
    measured = card.MeasuredEntry(published, None)
    text = str(card.drafter_card(measured))
    assert "**Trained and published by others.**" in text
    assert "| tau | 4.41 | A100 | the paper |" in text
    assert "4.41 (reported by the paper)" in card.zoo_table((measured,))
    data = card.card_data(measured)
    assert (data.license, data.license_name, data.eval_results) == ("other", "unclear", None)


def test_a_recipe_offers_a_plan_and_no_snippet() -> None:
    recipe = entry().model_copy(update={"status": "recipe", "training": None, "files": {}, "plan": "First, answers."})
    text = str(card.drafter_card(card.MeasuredEntry(recipe, None)))
    assert "No weights exist" in text
    assert "First, answers." in text
    assert "load_drafter" not in text


def test_an_unmeasured_entry_says_so() -> None:
    unmeasured = card.MeasuredEntry(entry(), None)
    assert "Not measured by this project." in str(card.drafter_card(unmeasured))
    assert "not measured here" in card.zoo_table((unmeasured,))
    assert card.card_data(unmeasured).eval_results is None


def test_the_framework_card_lists_every_drafter_and_source() -> None:
    text = str(card.framework_card((MEASURED,)))
    assert f"| `{NAME}` | someone/tiny | trained | 2.17 | 1.55 [1.50, 1.60] | 4/4 |" in text
    assert f"| `{NAME}` | mbpp | CC-BY-4.0 | 100 |" in text
    assert "No drafter has been trained yet." in str(card.framework_card(()))


def test_only_the_marked_block_of_a_document_is_replaced() -> None:
    document = f"before\n{card.BLOCK_BEGIN}\nold\n{card.BLOCK_END}\nafter\n"
    assert card.replace_block(document, "new\n") == f"before\n{card.BLOCK_BEGIN}\nnew\n{card.BLOCK_END}\nafter\n"


@pytest.mark.parametrize("document", ["", card.BLOCK_BEGIN, f"{card.BLOCK_END}{card.BLOCK_BEGIN}"])
def test_a_document_without_its_markers_is_refused(document: str) -> None:
    with pytest.raises(ConfigurationError, match="expected one pair"):
        card.replace_block(document, "new")


def test_stale_documents_are_found_until_they_are_rendered(tmp_path: Path) -> None:
    folder = write_zoo(tmp_path)
    generated = {folder / "README.md", tmp_path / "MODEL_CARD.md", tmp_path / "README.md"}
    assert set(card.stale_documents(tmp_path)) == generated | {folder / "results.svg"}
    for path, text in card.generated_documents(tmp_path).items():
        path.write_text(text)
    assert card.stale_documents(tmp_path) == []
    (folder / "results.json").unlink()
    assert set(card.stale_documents(tmp_path)) == generated


def test_this_checkouts_documents_say_what_its_zoo_says() -> None:
    assert card.stale_documents(ROOT) == [], "run: python scripts/render_cards.py"


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_card_cites_the_paper_of_its_own_kind(kind: str) -> None:
    found = entry().model_copy(update={"kind": kind})
    text = str(card.drafter_card(card.MeasuredEntry(found, None)))
    cited = {each.arxiv for each in DRAFTERS.values() if f"arXiv {each.arxiv}" in text}
    assert cited == {DRAFTERS[kind].arxiv}
    assert f"{DRAFTERS[kind].title} drafter for" in text
