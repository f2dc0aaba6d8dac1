import subprocess
import sys

import pytest

from headway.errors import LabError
from headway.lab import Lab, Scenario, possible


@pytest.mark.parametrize(
    ("name", "replacement", "sentence"),
    [
        ("headway.lab.possible.TUN_PATH", "/dev/net/no-such-device", "needs /dev/net/no-such-device: modprobe tun"),
        ("headway.lab.possible.os.access", lambda *_: False, "may not open /dev/net/tun: run as root, or chmod 666"),
        ("headway.lab.possible.importlib.util.find_spec", lambda _: None, r"pip install 'headway\[lab\]'"),
        ("headway.lab.possible.may_make_namespaces", lambda: False, "may not make network namespaces: run as root"),
        ("headway.lab.possible.sys.platform", "darwin", "needs Linux"),
    ],
)
def test_one_sentence_says_what_is_missing(name, replacement, sentence, monkeypatch):
    monkeypatch.setattr("headway.lab.possible.Path.exists", lambda path: "no-such" not in str(path))
    monkeypatch.setattr("headway.lab.possible.os.access", lambda *_: True)
    monkeypatch.setattr(name, replacement)
    with pytest.raises(LabError, match=sentence), Lab(2, Scenario()):
        pass


def test_the_command_says_it_and_exits_with_2():
    code = (
        "import headway.lab.possible as possible; possible.TUN_PATH = '/dev/net/no-such-device';"
        "import sys; sys.argv = ['headway', 'emulate', '-n', '2', '--', 'true'];"
        "from headway.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.strip() == (
        "headway emulate: The lab needs /dev/net/no-such-device: modprobe tun, "
        "or start the container with --device /dev/net/no-such-device."
    )
    assert possible.TUN_PATH == "/dev/net/tun"


def test_where_a_user_namespace_would_do_it_says_so(monkeypatch):
    monkeypatch.setattr("headway.lab.possible.missing_besides_privilege", lambda: None)
    monkeypatch.setattr("headway.lab.possible.may_make_namespaces", lambda: False)
    sentences = {True: "unshare --user --map-root-user", False: "sysctl kernel.unprivileged_userns_clone=1"}
    for allowed, sentence in sentences.items():
        monkeypatch.setattr("headway.lab.possible.may_make_user_namespaces", lambda allowed=allowed: allowed)
        assert sentence in possible.missing()
