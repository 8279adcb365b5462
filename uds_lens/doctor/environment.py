"""What is installed, which devices there are, how much room, and whether the Hub is asked."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from uds_lens.checked_arguments import arguments_checked
from uds_lens.doctor.finding import Finding, Verdict
from uds_lens.optional_packages import EXTRA_OF, distribution_of, install_command

_CORE = ("torch", "transformers", "transformer-lens")
_FOR = {
    "bitsandbytes": "4-bit models: quantise, and audits of quantised models",
    "peft": "LoRA: adapters as models, unlearn --lora, relearn --lora",
    "rouge_score": "elicit; ROUGE and model utility in metrics",
    "sklearn": "membership attacks in metrics",
    "kaleido": "figures as PNG, SVG and PDF",
    "spacy": "annotate --by names",
    "submitit": "sweep --slurm",
    "trackio": "unlearn --log-to trackio",
    "wandb": "unlearn --log-to wandb",
}
"""Packages that not every command needs, by their names in Python, and which do."""

_GIB = 2**30
_LITTLE = 2.0
"""GiB below which room is worth a word."""


@arguments_checked
def examine_environment(*, place: str | os.PathLike[str] = ".") -> list[Finding]:
    """Look at this installation and this machine. Nothing is downloaded and nobody is asked over the network.

    Args:
        place: Where results would be written.

    Returns:
        What was found: versions, packages, devices, memory, room on disks, and whether the Hub is asked.

    Example:
        >>> [finding.what for finding in examine_environment()][:2]
        ['uds-lens', 'python']
    """
    return [*_packages(), *_devices(), *_room(Path(place)), *_hub()]


def _packages() -> Iterator[Finding]:
    yield Finding("uds-lens", "ok", f"{_installed('uds-lens') or 'run from a folder'}")
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform(terse=True)}")
    wanted = _wanted()
    for module in (*_CORE, *_FOR):
        name = distribution_of(module)
        found, bounds = _installed(name), wanted.get(name, "")
        needed = f" (for {_FOR[module]})" if module in _FOR else ""
        pip = install_command(f"{name}{bounds}")
        if found is None:
            verdict: Verdict = "note" if module in _FOR else "problem"
            extra = install_command(f"uds-lens[{EXTRA_OF[module]}]") if module in _FOR else pip
            yield Finding(name, verdict, f"not installed{needed}", extra)
        elif bounds and not _fits(found, bounds):
            fix = f"{pip}; where another project needs {found}, in an environment of its own"
            yield Finding(name, "problem", f"{found}, expected {bounds}", fix)
        else:
            yield Finding(name, "ok", f"{found}{needed}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _wanted() -> dict[str, str]:
    """Bounds of versions by package, as this package declares them."""
    from packaging.requirements import Requirement

    try:
        lines = distribution("uds-lens").requires or []
    except PackageNotFoundError:
        return {}
    return {found.name: str(found.specifier) for found in map(Requirement, lines)}


def _fits(found: str, bounds: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(bounds).contains(found, prereleases=True)


def _devices() -> Iterator[Finding]:
    import psutil
    import torch

    yield Finding("CPU", "ok", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()}")
    memory = psutil.virtual_memory()
    yield _gib("memory", memory.available, memory.total, "close other programs, or audit a smaller model")
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        yield _gib(f"cuda:{number} {name}", free, total, "see with nvidia-smi who holds it")
    if torch.cuda.device_count() == 0:
        yield Finding("GPU", "note", "none that torch can use", "audits run on the CPU: right, and slower")


def _room(place: Path) -> Iterator[Finding]:
    for what, folder in (("results", place), ("temporary files", Path(tempfile.gettempdir()))):
        folder = folder.expanduser().absolute()
        while not folder.exists():
            folder = folder.parent
        if not os.access(folder, os.W_OK):
            yield Finding(what, "problem", f"{folder} cannot be written to", "choose another place")
            continue
        disk = shutil.disk_usage(folder)
        more = "free space, or choose another place" + (" with TMPDIR" if what != "results" else "")
        yield _gib(f"{what} in {folder}", disk.free, disk.total, more)


def _gib(what: str, free: int, total: int, fix: str) -> Finding:
    little = free / _GIB < _LITTLE
    told = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    return Finding(what, "note" if little else "ok", told, fix if little else None)


def _hub() -> Iterator[Finding]:
    offline = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _is_set(name)]
    if offline:
        yield Finding("Hub", "note", f"offline ({' and '.join(offline)} set): only files that are here")
    else:
        yield Finding("Hub", "ok", "asked for models and data that are not here (--offline stops that)")
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    yield Finding("Hub cache", "ok", f"{cache}{'' if cache.is_dir() else ', which is not there yet'}")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
