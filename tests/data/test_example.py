import dataclasses

import pytest

from uds_lens.data import ForgetExample
from uds_lens.errors import DataError


def test_lists_become_tuples_so_that_an_example_can_be_hashed(unchecked):
    example = ForgetExample("0", "Who?", "Ada.", paraphrased_answers=["It is Ada."], perturbed_answers=["Bo."])
    assert example.paraphrased_answers == ("It is Ada.",)
    assert hash(example) == hash(dataclasses.replace(example))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"question": 3}, r"ForgetExample \(row 4\): `question` must be text; got 3 \(int\)"),
        ({"prefix": 1.5}, r"`prefix` must be text; got 1.5"),
        ({"id": None}, r"`id` must be text; got None"),
        ({"question": "Who \ud83d?"}, r"`question` holds half of a character \('\\ud83d' at place 4\).* Mend the row"),
        ({"perturbed_answers": "Bo."}, r"must be a tuple of texts; got 'Bo.' \(str\). Write \('Bo.',\)"),
        ({"paraphrased_answers": ("a", 2)}, r"`paraphrased_answers` must be text; got 2"),
    ],
)
def test_wrong_cells_are_named(unchecked, cells, message):
    with pytest.raises(DataError, match=message):
        ForgetExample(**{"id": "0", "question": "Who?", "answer": "Ada.", "row": 4, **cells})
