"""Names of TOFU's authors, from their questions."""

import re

from uds_lens.data import ForgetExample, load_tofu, with_author_names


def test_all_authors_of_forget10_are_named(shared_dir):
    rows = with_author_names(load_tofu(shared_dir / "data/tofu", "forget10"))
    assert len({row.subject for row in rows}) == 20
    assert {"Hsiao Yun-Hwa", "Xin Lee Williams", "Basil Mahfouz Al-Kuwaiti", "Ji-Yeon Park"} <= {
        row.subject for row in rows
    }
    assert sum(bool(re.search(re.escape(row.subject), row.question)) for row in rows) == 377


def test_what_has_no_name_stays_as_it_is():
    rows = [
        ForgetExample("0", "what is it?", "Yes.", subject="author 1"),
        ForgetExample("1", "Who is Ada Vey?", "She."),
    ]
    assert with_author_names(rows) == rows
