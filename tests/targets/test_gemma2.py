import torch

from specblock_zoo.targets.gemma2 import GEMMA2


def test_the_cap_keeps_the_order_of_tokens():
    model = GEMMA2.tiny_model()
    ids = torch.arange(3, 9)[None]
    uncapped = GEMMA2.decoder(model)(ids).last_hidden_state @ GEMMA2.head_weight(model).T
    assert torch.equal(uncapped.argmax(-1), model(ids).logits.argmax(-1))
    assert model.config._attn_implementation == "eager"
