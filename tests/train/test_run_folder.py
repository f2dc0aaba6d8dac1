"""The folder of a run: its name, its lock, its configuration."""

from __future__ import annotations

import json

import pytest

from headway.train.run_folder import default_folder, locked, make_folder
from headway.train.settings import TrainSettings


def test_every_run_has_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(3):
        folder = default_folder("digits-ddp")
        folder.mkdir(parents=True)
        names.append(folder.name)
    assert len(set(names)) == 3
    assert all("digits-ddp" in name for name in names)


def test_two_launchers_cannot_use_one_folder(tmp_path):
    with locked(tmp_path), pytest.raises(ValueError, match="is being trained in already"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_the_path_of_the_data_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "run", TrainSettings(workload="text", data="corpus.txt"), {"workers": 2})
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["data"] == str(tmp_path / "corpus.txt")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.json"]


def test_a_file_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file: give a folder"):
        make_folder(tmp_path / "file", TrainSettings(), {"workers": 2})
