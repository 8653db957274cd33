"""What differs between the transformers versions we run on."""

from dataclasses import fields

from transformers.generation.utils import GenerateDecoderOnlyOutput

CACHE_NAME = "cache" if "cache" in {field.name for field in fields(GenerateDecoderOnlyOutput)} else "past_key_values"
"""What models and `generate` call the target's cache: `cache` from 5.24 on."""
