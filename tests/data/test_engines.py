import copy

import pytest
import torch

from specblock_zoo.data.engines import ENGINES, LocalEngine, Question, batch_seed, cut_at_end, engine_class
from specblock_zoo.errors import UnknownNameError
from specblock_zoo.targets.llama import LLAMA
from tests.support.tiny_pair import VOCAB_SIZE, character_tokenizer


@pytest.fixture(scope="module")
def engine():
    return LocalEngine(LLAMA.tiny_model(vocab_size=VOCAB_SIZE), character_tokenizer())


QUESTIONS = [Question("a", (1, 5, 6)), Question("b", (1, 7, 8, 9, 10, 11)), Question("c", (1, 12))]


def test_greedy_answers_of_a_batch_are_those_of_each_prompt_alone(engine):
    together = engine.answer(QUESTIONS, 0.0, 12, seed=0)
    assert together == [engine.answer([question], 0.0, 12, seed=0)[0] for question in QUESTIONS]


def test_greedy_answers_take_the_likeliest_token(engine):
    (answer,) = engine.answer(QUESTIONS[:1], 0.0, 1, seed=0)
    logits = engine.model(torch.tensor([QUESTIONS[0].prompt_ids])).logits[0, -1]
    assert answer.answer_ids == [int(logits.argmax())]


def test_sampling_is_a_function_of_seed_and_questions_and_leaves_the_generator_alone(engine):
    torch.manual_seed(7)
    expected = torch.rand(())
    torch.manual_seed(7)
    first, again, other = (engine.answer(QUESTIONS, 1.0, 12, seed=seed) for seed in (0, 0, 1))
    assert torch.rand(()) == expected
    assert first == again != other


def test_sampling_draws_from_the_whole_distribution_at_the_temperature(engine):
    many = [Question(str(i), (1, 5, 6)) for i in range(3000)]
    drawn = [answer.answer_ids[0] for answer in engine.answer(many, 0.7, 1, seed=0)]
    logits = engine.model(torch.tensor([[1, 5, 6]])).logits[0, -1]
    expected = (logits / 0.7).softmax(-1)
    found = torch.bincount(torch.tensor(drawn), minlength=VOCAB_SIZE) / len(drawn)
    assert (expected > 0).sum() > 50, "transformers' default would keep fifty"
    assert (found - expected).abs().sum() / 2 < 0.08


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_the_targets_folder_asks_of_generate_does_not_change_its_answers(engine, temperature):
    asking = copy.copy(engine.model)
    asking.generation_config = copy.deepcopy(engine.model.generation_config)
    expected = engine.answer(QUESTIONS, temperature, 12, seed=0)
    likeliest = expected[0].answer_ids[0]
    wishes = {"repetition_penalty": 9.0, "no_repeat_ngram_size": 1, "min_new_tokens": 12, "renormalize_logits": True}
    wishes |= {"min_p": 0.9, "typical_p": 0.1, "epsilon_cutoff": 0.5, "suppress_tokens": [likeliest], "num_beams": 2}
    wishes |= {"bad_words_ids": [[likeliest]], "forced_eos_token_id": 5, "max_length": 3, "max_time": 1e-9}
    for name, value in wishes.items():
        setattr(asking.generation_config, name, value)
    assert LocalEngine(asking, engine.tokenizer).answer(QUESTIONS, temperature, 12, seed=0) == expected
    assert asking.generation_config.repetition_penalty == 9.0, "the caller's model is as it was"
    # So may an old folder's config.json, which `generate` alone refuses.
    asking.config = copy.deepcopy(asking.config)
    asking.config.repetition_penalty = 9.0
    assert LocalEngine(asking, engine.tokenizer).answer(QUESTIONS, temperature, 12, seed=0) == expected


def test_an_answer_ends_with_the_first_end_of_text():
    assert vars(cut_at_end([5, 6, 2, 2, 2], [2])) == {"answer_ids": [5, 6, 2], "finish": "eos"}
    assert vars(cut_at_end([5, 6], [2])) == {"answer_ids": [5, 6], "finish": "length"}


def test_batches_of_other_questions_have_other_seeds():
    seeds = {batch_seed(QUESTIONS[:n], seed) for n in (1, 2, 3) for seed in (0, 1)}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_an_unknown_engine_is_refused_with_those_there_are():
    assert engine_class("local") is ENGINES["local"]
    with pytest.raises(UnknownNameError, match="'remote'; known: local"):
        engine_class("remote")
