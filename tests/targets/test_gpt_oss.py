from specblock_zoo.targets.gpt_oss import GPT_OSS


def test_sinks_need_eager_attention():
    model = GPT_OSS.tiny_model()
    assert model.config.model_type in GPT_OSS.model_types
    assert model.config._attn_implementation == "eager"
    assert GPT_OSS.decoder_layers(model)[0].self_attn.sinks.shape == (model.config.num_attention_heads,)
