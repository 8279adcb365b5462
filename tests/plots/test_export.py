import shutil
import sys

import pytest

from uds_lens.errors import ConfigError, MissingDependencyError, ResultFormatError
from uds_lens.plots import save_figure


def test_html_is_one_file_that_needs_no_network(audit, tmp_path):
    page = save_figure(audit.plot_clip(), tmp_path / "clip.html").read_text(encoding="utf-8")
    assert "Plotly.newPlot" in page and '<script src="http' not in page and "<link" not in page


def test_unknown_formats_are_refused_before_any_work(audit, tmp_path):
    with pytest.raises(ConfigError, match=r"saved as \.html, \.png.*got 'clip.gif'"):
        save_figure(audit.plot_clip(), tmp_path / "clip.gif")


def test_without_kaleido_the_message_names_the_fix(audit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "uds-lens\[static\]".*save the figure as \.html'):
        save_figure(audit.plot_clip(), tmp_path / "clip.png")
    assert not list(tmp_path.iterdir())


def test_without_a_browser_the_message_names_the_fix(audit, tmp_path, monkeypatch):
    pytest.importorskip("kaleido")
    figure = audit.plot_clip()

    def no_chrome(*_, **__):
        raise RuntimeError("Kaleido requires Google Chrome to be installed.")

    monkeypatch.setattr(type(figure), "to_image", no_chrome)
    with pytest.raises(MissingDependencyError, match="needs Chrome or Chromium"):
        save_figure(figure, tmp_path / "clip.pdf")


@pytest.mark.long  # draws in a Chromium
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("suffix", "magic"),
    [
        ("png", b"\x89PNG"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("svg", b"<svg"), ("pdf", b"%PDF"))),
    ],
)
def test_pictures(suffix, magic, audit, tmp_path):
    pytest.importorskip("kaleido")
    if not any(map(shutil.which, ("chromium", "google-chrome", "chrome"))):
        pytest.skip("no Chrome or Chromium")
    assert save_figure(audit.plot_clip(), tmp_path / f"clip.{suffix}", scale=1).read_bytes().startswith(magic)


def test_a_picture_is_replaced_only_when_asked(audit, tmp_path, monkeypatch):
    pytest.importorskip("kaleido")
    figure = audit.plot_clip()
    monkeypatch.setattr(type(figure), "to_image", lambda *_, **__: b"<svg>new</svg>")
    (tmp_path / "clip.svg").write_text("mine")
    with pytest.raises(ResultFormatError, match="exists: choose another name"):
        save_figure(figure, tmp_path / "clip.svg")
    assert (tmp_path / "clip.svg").read_text() == "mine"
    assert save_figure(figure, tmp_path / "clip.svg", overwrite=True).read_text() == "<svg>new</svg>"
