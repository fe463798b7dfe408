"""Settings: precedence, sources, and what each refuses. No cluster is started here."""

from __future__ import annotations

import dataclasses
import os

import pytest

from dualray.input_files import INPUT_BYTES_MAX
from dualray.settings import SETTINGS, limits_of, resolve
from dualray.shared.model.config import Config

POLICY = "tests.planted.policies:NeverRetries"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working directory without a config file, and no settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in (*SETTINGS, "config"):
        monkeypatch.delenv(f"DUALRAY_{name.upper()}", raising=False)
    return tmp_path


def values(**arguments):
    return {name: entry.value for name, entry in resolve(arguments).items()}


def test_defaults():
    found = resolve({})
    assert {entry.source for entry in found.values()} == {"default"}
    assert found["mode"].value == "real"
    assert found["nodes"].value == 1
    assert found["log_to_driver"].value is True
    assert set(found) == set(SETTINGS)


def test_argument_beats_environment_beats_file_beats_default(elsewhere, monkeypatch):
    (elsewhere / "dualray.toml").write_text('mode = "sim"\nnum_cpus = 1\nnum_gpus = 1\nnodes = 1\nseed = 1\n')
    monkeypatch.setenv("DUALRAY_NUM_CPUS", "2")
    monkeypatch.setenv("DUALRAY_NUM_GPUS", "2")
    found = resolve({"num_cpus": 3})
    assert (found["num_cpus"].value, found["num_cpus"].source) == (3, "argument")
    assert (found["num_gpus"].value, found["num_gpus"].source) == (2.0, "environment")
    assert (found["nodes"].value, found["nodes"].source) == (1, "dualray.toml")
    assert (found["seed"].value, found["seed"].source) == (1, "dualray.toml")
    assert (found["resources"].value, found["resources"].source) == (None, "default")


def test_a_config_file_may_be_named(elsewhere, monkeypatch):
    path = elsewhere / "other.toml"
    path.write_text("num_cpus = 7\n[resources]\ndisk = 2\n[limits]\npush_window_max = 3\n")
    monkeypatch.setenv("DUALRAY_CONFIG", str(path))
    found = resolve({})
    assert found["num_cpus"].value == 7
    assert found["num_cpus"].source == str(path)
    assert found["resources"].value == {"disk": 2}
    assert limits_of(found).push_window_max == 3


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("mode", "sim", "sim"),
        ("num_cpus", "1.5", 1.5),
        ("nodes", "11", 11),
        ("seed", "-3", -3),
        ("object_store_memory", "2GiB", 2 * 1024**3),
        ("object_store_memory", "2000000", 2_000_000),
        ("memory", "16GiB", 16 * 1024**3),
        ("log_to_driver", "false", False),
        ("log_to_driver", "1", True),
        ("resources", '{"disk": 2}', {"disk": 2}),
        ("limits", '{"push_window_max": 3}', {"push_window_max": 3}),
    ],
)
def test_settings_from_the_environment(monkeypatch, name, text, value):
    monkeypatch.setenv("DUALRAY_MODE", "sim")
    monkeypatch.setenv(f"DUALRAY_{name.upper()}", text)
    assert values()[name] == value


def test_faults_from_the_environment_are_separated_by_semicolons(monkeypatch):
    monkeypatch.setenv("DUALRAY_MODE", "sim")
    monkeypatch.setenv("DUALRAY_FAULTS", "kill node-1 at 1s; kill worker when f starts 2")
    assert [str(fault) for fault in values()["faults"]] == ["kill node-1 at 1s", "kill worker when f starts 2"]


def test_limits_become_a_config():
    config = limits_of(resolve({"limits": {"lease_idle_ns": 5, "retry_policy": POLICY}}))
    assert config == dataclasses.replace(Config(), lease_idle_ns=5, retry_policy=POLICY)


def test_every_setting_and_limit_is_described():
    assert all(setting.help for setting in SETTINGS.values())
    rows = Config.describe()
    assert [row[0] for row in rows] == [field.name for field in dataclasses.fields(Config)]
    assert all(unit and why for _, _, unit, why in rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "simm"}, "mode='simm' must be 'real', 'sim' or 'ray'. Did you mean 'sim'?"),
        ({"num_cpus": -1}, "num_cpus=-1 must be between 0 and 1,000,000"),
        ({"num_cpus": float("nan")}, "num_cpus=nan must be between"),
        ({"num_cpus": 1e9}, "num_cpus=1000000000.0 must be between"),
        ({"num_gpus": float("inf")}, "num_gpus=inf must be between"),
        ({"num_cpus": "many"}, "num_cpus='many' must be a number"),
        ({"num_cpus": True}, "num_cpus=True must be a number"),
        ({"nodes": 0}, "nodes=0 must be between 1 and"),
        ({"nodes": 2.5}, "nodes=2.5 must be an int"),
        ({"nodes": "many"}, "nodes='many' must be a whole number"),
        ({"seed": "x"}, "seed='x' must be a whole number"),
        ({"seed": 1.5}, "seed=1.5 must be an int"),
        ({"object_store_memory": 5}, "object_store_memory=5 must be at least 1 MiB"),
        ({"memory": -500}, "memory=-500 must be more than 0 bytes"),
        ({"memory": "much"}, "memory: 'much' is not understood"),
        ({"object_store_memory": "2 parsecs"}, "'2 parsecs' is not understood"),
        ({"object_store_memory": 1e9 + 0.5}, "must be a number of bytes, or a string such as '2GiB'"),
        ({"resources": "disk=2"}, "resources='disk=2' must be valid JSON"),
        ({"limits": [1]}, "limits=[1] must be a dict from names to values"),
        ({"resources": ["disk"]}, "resources=['disk'] must be a dict from names to amounts"),
        ({"log_to_driver": "maybe"}, "log_to_driver='maybe' must be True or False"),
        ({"limits": {"push_window": 1}}, "limits has the unknown limit 'push_window'. Did you mean 'push_window_"),
        ({"faults": ["kill node-1 soon"]}, "fault 'kill node-1 soon' is not understood; write 'kill node-5 at 2.5s'"),
        ({"faults": ["kill worker at 1s"]}, "the fault needs a task that runs on the worker"),
        ({"faults": ["kill node-1 when f starts 0"]}, "the number of a start or an end must be at least 1"),
        ({"faults": 3}, "faults=3 must be a list of faults"),
    ],
    ids=str,
)
def test_a_value_that_a_setting_cannot_have(arguments, words):
    mode = {} if "mode" in arguments or "log_to_driver" in arguments else {"mode": "sim"}
    with pytest.raises((ValueError, TypeError)) as caught:
        limits_of(resolve(mode | arguments))
    assert words in str(caught.value)


HANG_AT_ZERO = (
    "lease_requests_max",
    "push_window_max",
    "store_objects_max",
    "worker_starts_max",
    "broadcast_receivers_max",
    "link_patience_ns",
    "transfer_chunk_bytes",
)
"""With these limits at 0 no task would start, or no object would reach another node."""


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"push_window_max": "many"}, "push_window_max='many' must be of type int, like 64"),
        ({"push_window_max": True}, "must be of type int"),
        *(({name: 0}, f"{name}=0 must be between 1 and ") for name in HANG_AT_ZERO),
        ({"workers_prestarted": 2**63}, "must be between -1 and 10,000 workers"),
        ({"lease_idle_ns": 2**62}, "must be between 0 and 3,600,000,000,000 ns"),
        ({"store_wait_ns": -1}, "store_wait_ns=-1 must be between 0 and "),
        ({"placement_policy": 3}, "placement_policy=3 must be of type str"),
        ({"placement_policy": "nowhere:Policy"}, "module 'nowhere' cannot be imported"),
        ({"placement_policy": "tests.planted.policies:None_"}, "has no 'None_'"),
        ({"placement_policy": "builtins:object"}, "has no method 'choose', which each placement_policy needs"),
        ({"retry_policy": "builtins:object"}, "has no method 'should_retry'"),
        ({"retry_policy": "BoundedRetry"}, "must be written 'package.module:Class'"),
    ],
)
def test_a_limit_of_a_wrong_type(limits, words):
    with pytest.raises(ValueError, match=words):
        limits_of(resolve({"limits": limits}))


def test_a_bad_value_names_where_it_came_from(elsewhere, monkeypatch):
    monkeypatch.setenv("DUALRAY_NUM_CPUS", "-1")
    with pytest.raises(ValueError, match=r"DUALRAY_NUM_CPUS='-1' must be"):
        resolve({})
    monkeypatch.delenv("DUALRAY_NUM_CPUS")
    (elsewhere / "dualray.toml").write_text("num_cpus = -1\n")
    with pytest.raises(ValueError, match=r"num_cpus in dualray\.toml=-1 must be"):
        resolve({})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("num_cpu = 1\n", "dualray.toml: unknown setting 'num_cpu'. Did you mean 'num_cpus'?"),
        ("num_cpus = = 1\n", "dualray.toml: Invalid value (at line 1, column 12)"),
    ],
)
def test_a_bad_config_file(elsewhere, content, words):
    (elsewhere / "dualray.toml").write_text(content)
    with pytest.raises(ValueError) as caught:
        resolve({})
    assert words in str(caught.value)


def test_a_config_file_that_is_not_there(monkeypatch):
    monkeypatch.setenv("DUALRAY_CONFIG", "nowhere.toml")
    with pytest.raises(ValueError, match=r"DUALRAY_CONFIG names the file 'nowhere.toml', which does not exist"):
        resolve({})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "dualray.toml cannot be read: it is not text in UTF-8"),
        (b"seed = " + b"[" * 5000, "dualray.toml cannot be read: it is nested too deeply"),
        (b"seed = " + b"9" * 6000, "dualray.toml: Exceeds the limit (4300 digits)"),
        (b"#" * (INPUT_BYTES_MAX + 1), "dualray.toml cannot be read: it has more than 67,108,864 bytes"),
    ],
)
def test_a_config_file_that_cannot_be_used_is_refused_in_one_line(elsewhere, content, words):
    (elsewhere / "dualray.toml").write_bytes(content)
    with pytest.raises(ValueError) as caught:
        resolve({})
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["fifo", "endless", "directory"])
def test_a_config_file_is_a_regular_file(elsewhere, kind):
    path = elsewhere / "dualray.toml"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case _:
            path.mkdir()
    why = "Is a directory" if kind == "directory" else "it is not a regular file"
    with pytest.raises(ValueError, match=rf"dualray.toml cannot be read: {why}$"):
        resolve({})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of another user")
@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_config_file_that_another_user_left_in_a_shared_directory_is_refused(elsewhere, monkeypatch, kind):
    elsewhere.chmod(0o1777)
    path, own = elsewhere / "dualray.toml", elsewhere / "own.toml"
    own.write_text("seed = 5\n")
    if kind == "link":  # to a file that this user trusts, but not here
        path.symlink_to(own)
    else:
        path.write_text("seed = 5\n")
    os.chown(path, 65534, 65534, follow_symlinks=False)
    with pytest.raises(ValueError, match=r"belongs to another user \(uid 65534\), and its settings can run code"):
        resolve({})
    monkeypatch.setenv("DUALRAY_CONFIG", "dualray.toml")
    assert values()["seed"] == 5


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of another user")
def test_a_config_file_of_the_owner_of_the_directory_is_read(elsewhere):
    path = elsewhere / "dualray.toml"
    path.write_text("seed = 5\n")
    for each in (path, elsewhere):  # as a checkout that a container mounts
        os.chown(each, 65534, 65534)
    elsewhere.chmod(0o755)
    assert values()["seed"] == 5


# ---- Settings of one mode --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "arguments", "words"),
    [
        ("real", {"nodes": 3}, r"init\(nodes=\.\.\.\) works only in sim mode, but mode='real' was given"),
        ("real", {"faults": ["kill node-1 at 1s"]}, r"init\(faults=\.\.\.\) works only in sim mode"),
        (
            "sim",
            {"redirect_output": True},
            r"init\(redirect_output=\.\.\.\) works only in real mode, but mode='sim' was given",
        ),
    ],
)
def test_with_the_mode_in_the_code_an_argument_of_the_other_is_an_error(mode, arguments, words):
    with pytest.raises(ValueError, match=words):
        resolve({"mode": mode} | arguments)


def test_where_the_mode_came_from_outside_it_is_ignored_with_one_warning(monkeypatch):
    monkeypatch.setenv("DUALRAY_MODE", "real")
    with pytest.warns(UserWarning, match="init ignores") as warned:
        found = resolve({"nodes": 3, "faults": ["kill node-1 at 1s"]})
    [warning] = warned
    text = str(warning.message)
    assert "init ignores nodes, faults" in text
    assert "mode 'real', from environment" in text
    assert found["mode"].value == "real"


def test_what_the_environment_or_a_file_say_of_the_other_mode_is_silently_left(elsewhere, monkeypatch):
    (elsewhere / "dualray.toml").write_text("nodes = 3\n")
    monkeypatch.setenv("DUALRAY_FAULTS", "kill node-1 at 1s")
    assert values(mode="real")["mode"] == "real"


def test_an_argument_of_sim_mode_while_nobody_chose_a_mode():
    with pytest.warns(UserWarning, match=r"init ignores nodes: mode 'real', from default"):
        resolve({"nodes": 3})
