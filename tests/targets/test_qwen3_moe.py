from specblock_zoo.targets.qwen3_moe import QWEN3_MOE


def test_the_tiny_one_routes_to_some_of_its_experts():
    config = QWEN3_MOE.tiny_config()
    assert config.model_type in QWEN3_MOE.model_types
    assert config.num_experts_per_tok < config.num_experts
    assert QWEN3_MOE.attention_windows(config) == {"full_attention": None}
