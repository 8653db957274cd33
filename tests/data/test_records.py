import gzip
import json

import pytest

from specblock_zoo.data.records import content_sha256, parse_record, read_objects, read_records
from specblock_zoo.errors import BadRecordError, ConfigurationError, EmptyDataError

GOOD = {"id": "a", "prompt_ids": [1, 2], "answer_ids": [3], "temperature": 0.7, "finish": "eos", "target": "t"}


def write(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_a_record_of_token_ids_is_read_whole():
    record = parse_record(json.dumps(GOOD), "f:1")
    assert (record.id, record.prompt_ids, record.answer_ids) == ("a", (1, 2), (3,))
    assert (record.temperature, record.finish, record.target, record.messages) == (0.7, "eos", "t", None)


def test_a_record_of_messages_is_read_whole():
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    record = parse_record(json.dumps({"id": "a", "messages": messages}), "f:1")
    assert list(record.messages) == messages
    assert record.prompt_ids is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "string id"),
        ('{"prompt_ids": [1], "answer_ids": [2]}', "string id"),
        ('{"id": 3, "prompt_ids": [1], "answer_ids": [2]}', "string id"),
        ('{"id": "", "prompt_ids": [1], "answer_ids": [2]}', "string id"),
        ('{"id": "a", "prompt_ids": [1]}', "keys are id, prompt_ids"),
        ('{"id": "a", "prompt_ids": "1 2", "answer_ids": [2]}', "prompt_ids is '1 2'"),
        ('{"id": "a", "prompt_ids": [1], "answer_ids": [-2]}', "answer_ids"),
        ('{"id": "a", "prompt_ids": [1], "answer_ids": [2.5]}', "answer_ids"),
        ('{"id": "a", "prompt_ids": [1], "answer_ids": [true]}', "answer_ids"),
        ('{"id": "a", "prompt_ids": [2147483648], "answer_ids": [2]}', r"0\.\.2147483647"),
        ('{"id": "a", "messages": [{"role": "user"}]}', "messages"),
        ('{"id": "a", "messages": []}', "messages"),
        ('{"id": "a", "prompt_ids": [1], "answer_ids": [2], "temperature": "hot"}', "temperature is 'hot'"),
        ('{"id": "a", "prompt_ids": [1], "answer_ids": [2], "target": 7}', "target is 7"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_and_reason(tmp_path, line, reason):
    file = write(tmp_path / "r.jsonl", {**GOOD, "id": "first"}, "\n", line + "\n")
    with pytest.raises(BadRecordError, match=reason) as caught:
        list(read_records([file]))
    assert f"{file}:3" in str(caught.value)


def test_a_repeated_id_is_refused_with_both_places(tmp_path):
    first, second = write(tmp_path / "1.jsonl", GOOD), write(tmp_path / "2.jsonl", {**GOOD, "id": "b"}, GOOD)
    with pytest.raises(BadRecordError) as caught:
        list(read_records([first, second]))
    assert f"{second}:2" in str(caught.value)
    assert f"{first}:1" in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_refused_even_beside_a_full_one(tmp_path, text):
    full, empty = write(tmp_path / "full.jsonl", GOOD), write(tmp_path / "empty.jsonl", text)
    with pytest.raises(EmptyDataError, match=str(empty)):
        list(read_records([full, empty]))


def test_a_missing_file_is_refused_with_its_name(tmp_path):
    with pytest.raises(ConfigurationError, match="absent"):
        list(read_records([tmp_path / "absent.jsonl"]))


def test_a_truncated_gzip_file_names_the_line_it_ends_at(tmp_path):
    lines = "".join(json.dumps({**GOOD, "id": f"r{i}", "answer_ids": [i] * 50}) + "\n" for i in range(200))
    whole = gzip.compress(lines.encode())
    file = tmp_path / "cut.jsonl.gz"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadRecordError, match=rf"{file}:\d+: the compressed file"):
        list(read_records([file]))


def test_compression_and_name_change_neither_records_nor_hash(tmp_path):
    plain = write(tmp_path / "r.jsonl", GOOD, {**GOOD, "id": "b"})
    packed = tmp_path / "other.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert [r.id for r in read_records([plain])] == [r.id for r in read_records([packed])]
    assert content_sha256([plain]) == content_sha256([packed])


def test_an_edited_file_has_another_hash(tmp_path):
    file = write(tmp_path / "r.jsonl", GOOD)
    before = content_sha256([file])
    write(file, {**GOOD, "answer_ids": [4]})
    assert content_sha256([file]) != before


@pytest.mark.parametrize("bad", ['{"id": "b", "prompt": "\\ud83d"}', '{"id": "\\ud83d", "prompt": "b"}'])
def test_half_a_character_is_refused_with_its_place_or_left_out(tmp_path, bad):
    path = tmp_path / "r.jsonl"
    path.write_text(f'{{"id": "a"}}\n{bad}\n{{"id": "c"}}\n')
    with pytest.raises(BadRecordError, match=r"r.jsonl:2: not JSON"):
        list(read_objects([path]))
    left_out = []
    assert [fields["id"] for _, fields in read_objects([path], left_out.append)] == ["a", "c"]
    assert len(left_out) == 1
