"""A conversation: later turns follow the method's own answers."""

import torch

from specblock_zoo.bench.ask import Answer, Question
from specblock_zoo.bench.dialogue import Interviewer, Item
from specblock_zoo.bench.records import Work
from specblock_zoo.bench.tasks import Prompt, encode_prompt
from specblock_zoo.targets.llama import LLAMA
from tests.support.measured import record
from tests.support.tiny_pair import VOCAB_SIZE, character_tokenizer

TOKENIZER = character_tokenizer()
PROMPT = Prompt(id="q/0", category="chat", turns=("hi", "more"))


def interviewer() -> Interviewer:
    return Interviewer(LLAMA.tiny_model(vocab_size=VOCAB_SIZE, max_position_embeddings=64), TOKENIZER, 8)


def work(_: float) -> Work:
    return Work(**{name: value for name, value in vars(record()).items() if name in Work.model_fields})


def test_the_second_turn_holds_the_first_answer_and_every_turn_its_own_seed() -> None:
    asked: list[Question] = []

    def ask(question: Question) -> Answer:
        asked.append(question)
        return Answer(tuple(TOKENIZER("y")["input_ids"]), work)

    item = Item("chat", PROMPT, temperature=1.0, seed=5)
    held = interviewer().hold(ask, item)
    assert torch.equal(asked[1].input_ids, encode_prompt(TOKENIZER, "hi", "y", "more"))
    assert asked[0].seed != asked[1].seed
    assert held.prompt_tokens == sum(question.input_ids.shape[1] for question in asked)
    made = {name: getattr(record(), name) for name in ("dtype", "threads", "packed", "commit", "versions")}
    line = held.record("x", "plain", item, made)
    assert (line.place, line.rounds, len(line.answers)) == (item.place, 20, 2)


def test_seeds_differ_by_prompt_and_by_seed_and_not_by_method() -> None:
    seeds = {Item("chat", PROMPT, 1.0, seed).seed_of(turn) for seed in (0, 1) for turn in (0, 1)}
    seeds |= {Item("code", PROMPT, 1.0, 0).seed_of(0)}
    assert len(seeds) == 5
    assert Item("chat", PROMPT, 1.0, 0).seed_of(0) in seeds


def test_room_is_asked_for_as_if_every_answer_were_as_long_as_it_may_be() -> None:
    said = encode_prompt(TOKENIZER, "hi", "", "more").shape[1]
    assert interviewer().room_for(PROMPT) == said + 2 * 8
