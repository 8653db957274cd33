from specblock_zoo.targets.qwen3 import QWEN3


def test_tiny_qwen3_has_a_head_size_that_hidden_over_heads_would_get_wrong():
    config = QWEN3.tiny_config()
    assert config.model_type in QWEN3.model_types
    assert config.head_dim != config.hidden_size // config.num_attention_heads
    assert not config.tie_word_embeddings


def test_upper_layers_may_look_through_a_window_and_masks_come_by_kind():
    config = QWEN3.tiny_config(use_sliding_window=True, sliding_window=24, max_window_layers=2)
    assert QWEN3.attention_windows(config) == {"full_attention": None, "sliding_attention": 24}
    assert QWEN3.mask_by_layer_type
