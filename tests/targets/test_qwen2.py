from specblock_zoo.targets.qwen2 import QWEN2


def test_the_tiny_one_mixes_whole_prefix_and_window():
    config = QWEN2.tiny_config()
    assert config.model_type in QWEN2.model_types
    assert QWEN2.attention_windows(config) == {"full_attention": None, "sliding_attention": 8}


def test_without_a_window_every_layer_sees_the_whole_prefix():
    assert QWEN2.attention_windows(QWEN2.tiny_config(use_sliding_window=False)) == {"full_attention": None}
