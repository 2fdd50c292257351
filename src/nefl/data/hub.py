"""Fetching a known data set's parquet files from the Hugging Face hub, where it is reachable."""

import os
import threading
from pathlib import Path

from nefl.data.catalog import DatasetInfo
from nefl.errors import DataError

HUB_TIMEOUT = 20.0  # seconds to answer at all; a download that runs may take as long as it needs


def fetch(name: str, info: DatasetInfo) -> Path:
    """Download the train, test and validation parquet files of a known data set.

    Returns:
        A folder of the hub's own cache, laid out like the repository.

    Raises:
        DataError: the hub does not answer or refuses; the message says what to put where instead.
    """
    if info.hub is None:
        raise DataError(f"{name}: not on the Hugging Face hub; give its folder as root")
    try:
        _ask(info.hub)
        return _download(info.hub)
    except Exception as error:  # each layer below (DNS, TLS, HTTP, hub, disk) raises its own kinds
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{name}: {info.hub} could not be fetched from the Hugging Face hub ({reason}). "
            f"Without the hub, put {info.wanted} into a folder and give that folder as root"
        ) from error


def _ask(repository: str) -> None:
    """Fail within HUB_TIMEOUT if the hub does not answer for this repository."""
    failures: list[Exception] = []

    def ask() -> None:
        try:
            from huggingface_hub import HfApi

            HfApi(endpoint=os.environ.get("HF_ENDPOINT")).dataset_info(
                repository, timeout=HUB_TIMEOUT / 2
            )
        except Exception as error:  # handed to the waiting thread
            failures.append(error)

    # A thread, because a name lookup obeys no timeout of the HTTP library.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {HUB_TIMEOUT:.0f} s")
    if failures:
        raise failures[0]


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        repository,
        repo_type="dataset",
        endpoint=os.environ.get("HF_ENDPOINT"),
        allow_patterns=["*train*.parquet", "*test*.parquet", "*valid*.parquet"],
        # SVHN's repository holds the uncropped photographs too.
        ignore_patterns=["full_numbers/*"],
    )
    return Path(folder)
