"""Chat templates that behave as the stock ones do in what matters for spans, small enough to read."""

# Llama-3.1: begin-of-text, headers, trimmed content, the date in a system turn that is always there.
LLAMA_31 = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set messages = messages[1:] %}"
    "{% else %}{% set system = '' %}{% endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n\n{{ system | trim }}<|eot_id|>"
    "{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

# Qwen3: thoughts only after the last question; an empty thought where there is none; a switch for the prompt.
QWEN3 = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}"
    "{% set thought = m.get('reasoning_content', '') %}{% set said = m['content'] %}"
    "{% if not thought and '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{% if m['role'] != 'assistant' %}<|im_start|>{{ m['role'] }}\n{{ said }}<|im_end|>\n"
    "{% elif loop.index0 > ns.last and (loop.last or thought) %}"
    "<|im_start|>assistant\n<think>\n{{ thought.strip('\\n') }}\n</think>\n\n{{ said.lstrip('\\n') }}<|im_end|>\n"
    "{% else %}<|im_start|>assistant\n{{ said }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

# SmolLM2: a default system turn where there is none.
SMOLLM2 = (
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are SmolLM.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# A template that marks its answers itself, end-of-turn mark left out.
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TEMPLATES = {"llama-3.1": LLAMA_31, "qwen3": QWEN3, "smollm2": SMOLLM2}
END_OF_TURN = {"llama-3.1": "<|eot_id|>", "qwen3": "<|im_end|>", "smollm2": "<|im_end|>"}
