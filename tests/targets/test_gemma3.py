from specblock_zoo.targets.gemma3 import GEMMA3


def test_text_models_only_and_most_layers_windowed():
    config = GEMMA3.tiny_config()
    assert GEMMA3.model_types == (config.model_type,) == ("gemma3_text",)
    assert config.layer_types.count("sliding_attention") > config.layer_types.count("full_attention") > 0
