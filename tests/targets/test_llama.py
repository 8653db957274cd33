from specblock_zoo.targets.llama import LLAMA


def test_tiny_llama_groups_its_heads_and_ties_its_head_like_smollm2():
    config = LLAMA.tiny_config()
    assert config.model_type in LLAMA.model_types
    assert config.num_key_value_heads < config.num_attention_heads
    assert config.tie_word_embeddings
