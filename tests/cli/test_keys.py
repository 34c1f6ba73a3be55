from __future__ import annotations

import stat

import pytest

from hilosync.cli.keys import read_key
from hilosync.errors import ConfigurationError


def test_a_new_key_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "learner.key"
    key = read_key(path, create=True)
    assert len(key) == 32 and read_key(path, create=True) == read_key(path, create=False) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(tmp_path / "other.key", create=True) != key


def test_a_key_is_not_made_where_a_run_goes_on(tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot read the key file .*give the run's own"):
        read_key(tmp_path / "missing.key", create=False)


def test_a_key_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "learner.key"
    read_key(path, create=True)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="may be read by others"):
        read_key(path, create=False)


@pytest.mark.parametrize("content", ["", "secret-but-wrong", "AB" * 32])
def test_what_is_no_key_is_refused_without_being_shown(tmp_path, content):
    path = tmp_path / "learner.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="holds no key: expected 64 hex digits") as refused:
        read_key(path, create=False)
    assert not content or content not in str(refused.value)
