"""A checkpoint whose weights are read while it runs, one block at a time; the next block is read in parallel.

The model is built without weights, on the meta device. `embed` reads the weights before the blocks, `blocks` loads and
releases one block after another, and `head` reads the head. All weights are hashed as they are read, so no additional
reading is needed for the fingerprint (which is the same as for a fully loaded model).

All blocks share two buffers: one for bytes from the files, and one for the model's weights. Allocating new memory for
each block would take longer than filling it (every page must be mapped again), and the memory that allocators keep
would grow with the model. Weights outside the blocks are read in pieces, directly into their final place. Memory freed
after a block's computation is returned to the system before the next block.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from io import FileIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor, nn

from uds_lens._compat.glibc import give_back_memory
from uds_lens._compat.transformers import QUANTISED_ENTRY, WEIGHTS_ENTRY, empty_model, fill_weights
from uds_lens._progress import tell
from uds_lens._storage.weights import ALONE, INDEX, weight_files
from uds_lens.errors import ModelError
from uds_lens.models._anatomy import set_plain_outputs
from uds_lens.models._checkpoint import (
    LOADING,
    Place,
    is_adapter,
    is_local,
    load_config,
    load_tokenizer,
    place_of,
    plain_errors,
    quiet_files,
    require_complete,
    require_finite,
    storage_of,
)
from uds_lens.models._fingerprint import (
    CheckpointFiles,
    checkpoint_files,
    digests_of,
    fingerprint_of_digests,
    known_fingerprints,
    loaded_from,
)
from uds_lens.models._hooked import HookedModel

Part: TypeAlias = "int | Literal['around', 'embedding', 'head']"
"""Weights that are read together: a block, the weights around the blocks, the input embedding, or the head."""

_PIECE = 1 << 22
"""Number of elements of a large weight that are converted at a time."""

_DTYPES = {
    "BOOL": torch.bool,
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Dtypes of unquantised weights, keyed by their names in safetensors files."""


def why_not_streamed(source: object, *, revision: str | None = None, offline: bool = False) -> str | None:
    """Return why a model's weights cannot be read block by block; None if they can."""
    if not isinstance(source, str | os.PathLike):
        return "it is already in memory"
    if is_adapter(source):
        return "it is an adapter: merge it into its base, and save the complete model"
    if storage_of(source) is not None:
        return "it is a GGUF file, which can only be unpacked as a whole"
    config = load_config(source, revision=revision, offline=offline, trust_remote_code=False)
    if getattr(config, QUANTISED_ENTRY, None):
        return "its weights are quantised, and only unquantised weights can be read block by block"
    if (named := getattr(config, WEIGHTS_ENTRY, None)) is not None:
        return f"its config names its weight file ({str(named)[:60]}): rename it to {ALONE}, or save the model again"
    folder = _folder(source, revision=revision, offline=offline)
    if not (folder / INDEX).is_file() and not (folder / ALONE).is_file():
        return f"it has neither {ALONE} nor {INDEX}: save it as safetensors, with save_pretrained"
    return None


def files_of(source: Place, *, revision: str | None, offline: bool) -> CheckpointFiles:
    """List a checkpoint's config and weight files, to compare them with those of an earlier run."""
    files = checkpoint_files(_folder(source, revision=revision, offline=offline)) or ()
    return tuple(file for file in files if file[0].endswith((".safetensors", "config.json")))


def weight_files_of(source: Place, *, revision: str | None, offline: bool) -> list[Path]:
    """List the files from which a streamed checkpoint is read; its directory may contain other weight files."""
    return weight_files(_folder(source, revision=revision, offline=offline), os.fspath(source))


class StreamedModel(HookedModel):
    """A checkpoint whose weights are read while it runs; use it in a `with` block. Only the part read last is loaded.

    Raises:
        ModelError: The checkpoint cannot be streamed, or its files are not a complete model.
    """

    def __init__(
        self,
        source: Place,
        *,
        dtype: torch.dtype,
        device: str,
        revision: str | None = None,
        offline: bool = False,
        tokenizer: Any = None,
    ) -> None:
        name = os.fspath(source)
        if (why := why_not_streamed(source, revision=revision, offline=offline)) is not None:
            raise ModelError(f"{name!r} cannot be streamed: {why}.")
        tell(f"reading {name} block by block")
        where: dict[str, Any] = {"revision": revision, "offline": offline, "trust_remote_code": False}
        self._files = _Files(_folder(source, revision=revision, offline=offline), name)
        with LOADING, plain_errors(source, offline=True), quiet_files():
            made = empty_model(load_config(source, **where), self._files.empty, dtype=dtype)
        require_complete(made.loading_info, source, type(made.model).__name__)
        set_plain_outputs(made.model.config)
        own = tokenizer if tokenizer is not None else load_tokenizer(source, **where)
        super().__init__(made.model, own, name=name, owned=True)
        self._opened = time.perf_counter()
        self._device, self._settings = torch.device(device), made.settings
        self._beside = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._embedding: Any = made.model.get_input_embeddings()
        self._head: Any = made.model.get_output_embeddings()
        self.is_tied = self._head.weight is self._embedding.weight
        """Whether the head shares the weight of the input embedding."""
        self._empty: dict[str, Tensor] = dict(sorted(made.model.state_dict(keep_vars=True).items()))
        first: dict[int, str] = {}
        self._hashed_as = {place: first.setdefault(id(weight), place) for place, weight in self._empty.items()}
        self._digests: dict[str, bytes] = {}
        self._stored_twice: tuple[str, str] | None = None
        """Names of a head and an embedding that are stored separately although the config ties them."""
        if not self.is_tied and getattr(made.model.config.get_text_config(), "tie_word_embeddings", False):
            name_of = {id(weight): place for place, weight in self._empty.items()}
            self._stored_twice = name_of[id(self._head.weight)], name_of[id(self._embedding.weight)]
        self._head_as_embedding: bytes | None = None
        self._part_of = self._parts()
        self._keys: dict[Part, list[str]] = {part: [] for part in self._part_of.values()}
        self._dtypes: dict[str, torch.dtype] = {}
        for key, place in made.filled_by.items():
            if place in self._part_of:
                self._keys[self._part_of[place]].append(key)
                self._dtypes[key] = self._empty[place].dtype
        self._files.require_plain(list(self._dtypes))
        # Stored tensors that become a weight unchanged; other tensors are joined or split.
        sources = Counter(made.filled_by.values())
        self._plain = {
            key
            for key, place in made.filled_by.items()
            if place in self._empty and sources[place] == 1 and self._empty[place].shape == self._files.empty[key].shape
        }
        self._rooms: dict[str, Tensor] = {}
        for buffer in made.model.buffers():
            if not buffer.is_meta:
                buffer.data = buffer.data.to(self._device)

    is_resident = False

    @property
    def device(self) -> torch.device:
        """The device on which the blocks run."""
        return self._device

    def close(self) -> None:
        """Release the model, and log how much of it was read and how fast."""
        self._rooms.clear()
        if self._hf is not None and (read := self.bytes_read):
            seconds, stored = max(time.perf_counter() - self._opened, 1e-9), self.bytes_stored
            times = "once" if read == stored else f"{read / stored:.2f} times"
            tell(f"{self.name}: {stored / 1e9:.2f} GB of weights read {times} in {seconds:.1f} s")
        self._embedding = self._head = None
        super().close()

    @property
    def bytes_read(self) -> int:
        """Number of weight bytes read so far, in their stored dtypes."""
        return self._files.bytes_read

    @property
    def bytes_stored(self) -> int:
        """Number of bytes of all the model's weights, in their stored dtypes."""
        return sum(self._files.nbytes(key) for keys in self._keys.values() for key in keys)

    def embed(self, ids: Int[Tensor, "token"]) -> None:
        """Read the weights around the blocks; the input embedding keeps only the rows of the given tokens.

        Args:
            ids: All tokens that will be run, without repetition, in increasing order.
        """
        self._read("around")
        self._read("embedding")
        embedding, rows = self._embedding, ids.to(self._device)
        if self.is_tied:
            whole = self._head if embedding.weight.is_meta else embedding
            self._head.weight = embedding.weight = whole.weight
        embedding.weight = nn.Parameter(embedding.weight.detach()[rows], requires_grad=False)
        self._wait()
        embedding.padding_idx = None  # refers to the complete embedding; only matters in training

        def find(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (torch.searchsorted(rows, args[0]), *args[1:])

        embedding.register_forward_pre_hook(find)

    def blocks(self, first: int = 0) -> Generator[int, None, None]:
        """Yield each block's index while its weights are loaded; meanwhile, the next block is read.

        With a GPU, the next block is also transferred meanwhile. On a CPU, conversion and hashing wait until the cores
        are free, because running them in parallel with matrix products would slow down both.
        """
        beside = self._beside is not None
        ahead = self._read if beside else self._load
        coming: Future[None] | None = None
        try:
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="uds_lens reads") as thread:
                try:
                    coming = thread.submit(ahead, first)
                    for layer in range(first, self.n_layers):
                        coming.result()
                        if not beside:
                            self._fill(layer)
                        if layer + 1 < self.n_layers:
                            coming = thread.submit(ahead, layer + 1)
                        yield layer
                        self._drop(layer)
                finally:
                    if coming is not None:
                        coming.cancel()
        finally:
            for left in self._filled():  # if memory ran out in a block, the next attempt needs this memory
                self._drop(left)
            self._rooms.clear()

    @contextmanager
    def head(self) -> Iterator[None]:
        """Read the head (unless it is tied and already loaded), and release it at the end of the `with` block."""
        self._read("head")
        try:
            yield
        finally:
            self._drop("head")

    def _weights_fingerprint(self) -> str:
        """Return the fingerprint of the weights; parts that have not been read yet are read, hashed and released.

        Nothing is read if the fingerprint of these files has already been computed in this process.

        Raises:
            ModelError: The files were changed in the meantime.
        """
        if self._fingerprint is not None:
            return self._fingerprint
        hf, hashed = self.hf, self._hashed_as
        unread = [part for part in self._keys if any(hashed[p] not in self._digests for p in self._places(part))]
        key = loaded_from(hf, self._files.state)
        before = known_fingerprints.get(key) if unread else None
        if before is None:
            for part in unread:
                self._read(part)
                self._drop(part)
            self._rooms.clear()
        self._files.require_unchanged()
        if before is not None:
            self._fingerprint = before
            return before
        digests = dict(self._digests)
        if (twice := self._stored_twice) is not None and self._head_as_embedding == digests[twice[1]]:
            # Head and embedding are equal, so a fully loaded model has one tensor for both, hashed under the name that
            # sorts first.
            del digests[max(twice)]
        self._fingerprint = known_fingerprints[key] = fingerprint_of_digests(hf, digests)
        return self._fingerprint

    def _parts(self) -> dict[str, Part]:
        """Return the part to which each weight belongs; a tied head belongs to the embedding."""
        names = {id(module): f"{name}." for name, module in self.hf.named_modules()}
        known: list[tuple[str, Part]] = [(names[id(b)], i) for i, b in enumerate(self.anatomy.layers)]
        known += [(names[id(self._embedding)], "embedding")]
        known += [(names[id(self._head)], "embedding" if self.is_tied else "head")]
        return {
            place: next((part for prefix, part in known if place.startswith(prefix)), "around") for place in self._empty
        }

    def _places(self, part: Part) -> list[str]:
        return [place for place, other in self._part_of.items() if other == part]

    def _filled(self) -> list[Part]:
        """Return the blocks whose weights are currently loaded."""
        held = {self._part_of[place] for place in self._empty if not self._weight(place).is_meta}
        return [part for part in held if isinstance(part, int)]

    def _read(self, part: Part) -> None:
        if isinstance(part, int):
            self._load(part)
        self._fill(part)

    def _load(self, layer: int) -> None:
        """Read a block's weights from the files, without converting them."""
        keys = self._keys[layer]
        self._files.load(keys, self._room("stored", layer, sum(_padded(self._files.empty[key]) for key in keys)))

    def _fill(self, part: Part) -> None:
        """Convert the stored tensors of a part to weights, hash those not hashed yet, and move them to the device."""
        keys = self._keys.get(part, [])
        if not keys:
            return
        filled = {key: self._files.empty[key].to(self._dtypes[key]) for key in keys if key in self._plain}
        places = _laid_out(self._room("filled", part, sum(map(_padded, filled.values()))), filled)
        if not isinstance(part, int):
            for key in keys:
                self._files.read(key, places.get(key))
        hf = self.hf
        with quiet_files():
            weights = {key: _Weight(self._files.take(key), self._dtypes[key], places.get(key)) for key in keys}
            errors = fill_weights(hf, weights, self._settings)
        if errors:
            raise ModelError(f"{self.name!r}: {errors[0].splitlines()[-1][:300]}")
        there = {place: weight for place in self._places(part) if not (weight := self._weight(place)).is_meta}
        new = {name: weight for place, weight in there.items() if (name := self._hashed_as[place]) not in self._digests}
        self._digests.update(digests_of(new))
        if self._stored_twice is not None and (head := there.get(self._stored_twice[0])) is not None:
            self._head_as_embedding = digests_of({self._stored_twice[1]: head})[self._stored_twice[1]]
        require_finite(there.items(), self.name)
        self._put(there)

    def _room(self, kind: str, part: Part, size: int) -> Tensor:
        """Return a buffer for a part: all blocks share one, and other parts get a new one."""
        if not isinstance(part, int):
            return torch.empty(size, dtype=torch.uint8)
        if kind not in self._rooms or len(self._rooms[kind]) < size:
            self._rooms[kind] = torch.empty(size, dtype=torch.uint8)
        return self._rooms[kind]

    def _weight(self, place: str) -> Tensor:
        owner, _, leaf = place.rpartition(".")
        weight: Tensor = getattr(self.hf.get_submodule(owner), leaf)
        return weight.detach()

    def _put(self, weights: dict[str, Tensor]) -> None:
        """Move weights to the device and put them into the model; on CUDA, in parallel with computations.

        The weights are not pinned. Pinning would add a copy on the host, in buffers that are rounded up to a power of
        two and never released, only to speed up a step that is faster than the disk anyway.
        """
        with nullcontext() if self._beside is None else torch.cuda.stream(self._beside):
            moved = {place: weight.to(self._device) for place, weight in weights.items()}
        if self._beside is not None:
            self._beside.synchronize()
        for place, weight in moved.items():
            owner, _, leaf = place.rpartition(".")
            module = self.hf.get_submodule(owner)
            buffer = leaf in module._buffers
            setattr(module, leaf, weight if buffer else nn.Parameter(weight, requires_grad=False))

    def _wait(self) -> None:
        """Wait until the device has finished using released weights, so that it never holds several parts at once."""
        if self._beside is not None:
            torch.cuda.current_stream(self._device).synchronize()

    def _drop(self, part: Part) -> None:
        self._wait()
        for place in self._places(part):
            owner, _, leaf = place.rpartition(".")
            setattr(self.hf.get_submodule(owner), leaf, self._empty[place])
        give_back_memory()


class _Files:
    """The safetensors files of a checkpoint.

    Tensors are read into existing buffers. The safetensors library instead maps files, whose pages count as used
    memory, or allocates new memory for every tensor.
    """

    def __init__(self, folder: Path, name: str) -> None:
        from safetensors import SafetensorError, safe_open

        self.name, self.folder, self.bytes_read = name, folder, 0
        self.state = checkpoint_files(folder)
        self.empty: dict[str, Tensor] = {}
        """The tensors in all files, on the meta device, keyed by name."""
        self.strange: dict[str, str] = {}
        """Other dtypes, keyed by tensor name. Such tensors are not plain weights (a mask that the model computes
        itself, for example)."""
        self._loaded: dict[str, Tensor] = {}
        self._places: dict[str, tuple[str, int]] = {}
        for file in (path.name for path in weight_files(folder, name)):
            try:
                with safe_open(folder / file, framework="pt", backend="pread"):  # its header is sound
                    pass
                with open(folder / file, "rb", buffering=0) as opened:
                    length = int.from_bytes(opened.read(8), "little")
                    header = json.loads(opened.read(length))
            except (OSError, SafetensorError, json.JSONDecodeError) as error:
                raise self._broken(file, error) from error
            header.pop("__metadata__", None)
            for key, entry in sorted(header.items()):
                if (dtype := _DTYPES.get(entry["dtype"])) is None:
                    self.strange[key] = entry["dtype"]
                self.empty[key] = torch.empty(entry["shape"], dtype=dtype, device="meta")
                self._places[key] = file, 8 + length + entry["data_offsets"][0]

    def require_plain(self, keys: Sequence[str]) -> None:
        """Raise `ModelError` unless the tensors that the model uses have ordinary dtypes."""
        for key in keys:
            if key in self.strange:
                raise ModelError(
                    f"{self.name!r} cannot be streamed: {key!r} is stored as {self.strange[key]}; expected floating "
                    "point."
                )

    def nbytes(self, key: str) -> int:
        return self.empty[key].numel() * self.empty[key].element_size()

    def load(self, keys: Sequence[str], room: Tensor) -> None:
        """Read tensors into a buffer, in their stored dtypes."""
        places = _laid_out(room, {key: self.empty[key] for key in keys})
        for key in sorted(keys, key=self._places.__getitem__):
            self.read(key, places[key])

    def read(self, key: str, place: Tensor | None) -> None:
        """Read a tensor into a buffer of any dtype, or into a new buffer; in pieces if it must be converted."""
        name, start = self._places[key]
        like = self.empty[key]
        place = torch.empty_like(like, device="cpu") if place is None else place
        same = place.dtype == like.dtype
        pieces = place.flatten().split(max(1, place.numel()) if same else _PIECE)
        room = None if same else torch.empty(len(pieces[0]), dtype=like.dtype)
        try:
            with open(self.folder / name, "rb", buffering=0) as file:
                file.seek(start)
                for piece in pieces:
                    stored = piece if room is None else room[: len(piece)]
                    _read_into(file, stored)
                    piece.copy_(stored)
        except (OSError, EOFError) as error:
            raise self._broken(name, error) from error
        self._loaded[key] = place
        self.bytes_read += self.nbytes(key)

    def take(self, key: str) -> Tensor:
        """Return a loaded tensor, which can be taken only once."""
        return self._loaded.pop(key)

    def require_unchanged(self) -> None:
        """Raise `ModelError` if a file has changed since it was opened."""

        def weights(state: CheckpointFiles | None) -> list[tuple[object, ...]]:
            return [file for file in state or () if file[0].endswith(".safetensors")]

        if weights(checkpoint_files(self.folder)) != weights(self.state):
            raise ModelError(
                f"files of {self.name!r} were written, moved or removed while they were read, so the results belong to "
                "no single model. Run this again when nothing is writing to that folder."
            )

    def _broken(self, what: str, error: Exception) -> ModelError:
        first = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        return ModelError(
            f"cannot read {what!r} of {self.name!r}: {first}. Is the file complete, and the disk healthy? Copy or "
            "download the file again; earlier results are kept."
        )


def _read_into(file: FileIO, place: Tensor) -> None:
    """Read the next bytes of a file into a tensor."""
    left = place.view(torch.uint8).numpy().data
    while left:
        if not (n := file.readinto(left)):
            raise EOFError("it ends early")
        left = left[n:]


def _padded(tensor: Tensor) -> int:
    """Return a tensor's size in bytes, padded to the start of the next tensor."""
    return -(-tensor.numel() * tensor.element_size() // 64) * 64


def _laid_out(room: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return consecutive views of a buffer, shaped like the given tensors."""
    views, start = {}, 0
    for key, like in tensors.items():
        part = room[start : start + like.numel() * like.element_size()]
        views[key] = part.view(like.dtype).view(like.shape)
        start += _padded(like)
    return views


class _Weight:
    """A loaded tensor, converted when transformers requests it."""

    def __init__(self, stored: Tensor, dtype: torch.dtype, place: Tensor | None) -> None:
        self._stored, self._dtype, self._place = stored, dtype, place

    def __getitem__(self, index: object) -> Tensor:
        # Never return a view of the buffer, because the next block is read into it.
        return self._stored.to(self._dtype, copy=True) if self._place is None else self._place.copy_(self._stored)


def _folder(source: Place, *, revision: str | None, offline: bool) -> Path:
    """Return the directory of a checkpoint's files, which are downloaded first if they are on the Hub."""
    if is_local(source):
        return place_of(source)
    from huggingface_hub import snapshot_download

    with plain_errors(source, offline):
        return Path(
            snapshot_download(
                os.fspath(source),
                revision=revision,
                local_files_only=offline,
                allow_patterns=["*.safetensors", "*.json", "tokenizer*"],
                ignore_patterns=["*/*", "consolidated*"],  # other formats of the same weights
            )
        )
