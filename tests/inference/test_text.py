"""A text grows exactly as `_sample` grows it."""

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from specblock_zoo.inference.text import NO_LIMIT, Rules, Text

PROMPT = torch.tensor([[1, 2, 3]])
LOGITS = torch.tensor([0.1, 0.2, 3.0, 0.4, 2.9])


class Recorder(BaseStreamer):
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []

    def put(self, value: torch.Tensor) -> None:
        self.tokens.append(value.tolist())

    def end(self) -> None:
        raise AssertionError("the text does not end the stream")


def test_processors_see_the_text_so_far_and_the_stream_each_token() -> None:
    streamer = Recorder()
    penalty = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(5.0)])
    text = Text(PROMPT, Rules(penalty, StoppingCriteriaList([MaxLengthCriteria(5)]), streamer=streamer))
    assert text.choose(LOGITS) == (4, False), "token 2 stands in the prompt and is penalised"
    assert text.choose(LOGITS) == (2, True), "now 4 is penalised too; length 5 is the end"
    assert streamer.tokens == [[4], [2]]
    assert text.ids.tolist() == [[1, 2, 3, 4, 2]]
    assert (len(text), text.remaining) == (5, 0)


def test_choosing_leaves_the_given_logits_alone() -> None:
    logits = LOGITS.clone()
    rules = Rules(LogitsProcessorList([TemperatureLogitsWarper(0.5)]), keep_scores=True, keep_logits=True)
    text = Text(PROMPT, rules)
    text.choose(logits)
    assert torch.equal(logits, LOGITS)
    assert torch.equal(text.logits[0], LOGITS[None])
    assert torch.equal(text.scores[0], LOGITS[None] / 0.5)


def test_one_draw_per_token_from_the_global_generator() -> None:
    torch.manual_seed(3)
    text = Text(PROMPT, Rules(do_sample=True))
    drawn = [text.choose(LOGITS)[0] for _ in range(8)]
    torch.manual_seed(3)
    assert drawn == [int(torch.multinomial(LOGITS.softmax(0), 1)) for _ in range(8)]


def test_committing_the_best_token_equals_choosing_it() -> None:
    criteria = StoppingCriteriaList([MaxLengthCriteria(6), EosTokenCriteria([4, 0])])
    slow, fast = Text(PROMPT, Rules(stopping_criteria=criteria)), Text(PROMPT, Rules(stopping_criteria=criteria))
    for best in (2, 3, 4):
        logits = torch.zeros(5)
        logits[best] = 1.0
        assert slow.choose(logits) == fast.commit_best(best)
    assert torch.equal(slow.ids, fast.ids)


def test_only_plain_greedy_rules_need_just_the_best_token() -> None:
    class Custom(StoppingCriteria):
        """A criterion this package does not know."""

    known = StoppingCriteriaList([MaxLengthCriteria(9), EosTokenCriteria(2)])
    assert Rules(stopping_criteria=known).need_only_best
    assert not Rules(stopping_criteria=StoppingCriteriaList([Custom()])).need_only_best
    assert not Rules(do_sample=True).need_only_best
    assert not Rules(LogitsProcessorList([TemperatureLogitsWarper(0.5)])).need_only_best
    assert not Rules(keep_scores=True).need_only_best
    assert not Rules(keep_logits=True).need_only_best


def test_the_temperature_is_that_of_the_sampling() -> None:
    warm, pair = TemperatureLogitsWarper(0.5), [TemperatureLogitsWarper(0.5), TemperatureLogitsWarper(3.0)]
    assert Rules(do_sample=True).temperature == 1.0
    assert Rules(LogitsProcessorList([warm]), do_sample=True).temperature == 0.5
    assert Rules(LogitsProcessorList(pair), do_sample=True).temperature == 1.5
    assert Rules(LogitsProcessorList([warm])).temperature == 0.0


def test_length_limits() -> None:
    assert Rules(stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(9), MaxLengthCriteria(7)])).max_length == 7
    assert Text(PROMPT, Rules()).remaining == NO_LIMIT - 3


def test_long_texts_outgrow_their_buffer() -> None:
    text = Text(PROMPT, Rules())
    tokens = [index % 5 for index in range(300)]
    for token in tokens:
        text.commit_best(token)
    assert text.ids.tolist() == [[1, 2, 3, *tokens]]
