import sys

from gongfu.engine.runtime import prepare_cpu


def test_waiting_is_passive_unless_the_user_says_otherwise_or_torch_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    import os

    assert prepare_cpu() and os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert prepare_cpu() and os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setitem(sys.modules, "torch", object())
    assert not prepare_cpu() and "OMP_WAIT_POLICY" not in os.environ
