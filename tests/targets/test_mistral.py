from specblock_zoo.targets.mistral import MISTRAL


def test_every_layer_looks_through_the_window():
    config = MISTRAL.tiny_config()
    assert config.model_type in MISTRAL.model_types
    assert MISTRAL.attention_windows(config) == {"sliding_attention": 8}


def test_later_models_have_no_window():
    assert MISTRAL.attention_windows(MISTRAL.tiny_config(sliding_window=None)) == {"full_attention": None}
