"""Which process something belongs to: numbers of processes are used again, and machines share their names."""

from uds_lens._storage import processes
from uds_lens._storage.processes import this_process


def test_machines_of_one_name_are_two(monkeypatch):
    monkeypatch.setattr(processes, "_text", lambda path: "another boot" if "boot" in path else "the same image")
    processes._machine.cache_clear()
    other = this_process()
    monkeypatch.undo()
    processes._machine.cache_clear()
    assert other.machine != this_process().machine and other.born == this_process().born
    assert not processes.is_gone(other._replace(pid=99_999_999)) and not processes.is_gone(this_process())
