"""ROCm's emulator recognised by what its launcher and documentation say a process sees; and never taken for a GPU.

The facts are those of github ROCm/rocm-systems, emulation/rocjitsu (see ``capmatrix/engine/emulator.py``); the
emulator itself was not run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from capmatrix import rungs, targets
from capmatrix.cell import Rung
from capmatrix.engine import Unavailable, emulator, environment, kfd
from capmatrix.report import doctor
from capmatrix.targets import device
from capmatrix.workers.limits import Limits, for_target

LIBRARY = "/opt/rocm/lib/librocjitsu.so"

#: The parts of configs/gfx942_cdna3_kmd.json that say what is emulated.
MI300X = json.dumps(
    {
        "max_ticks": 100000,
        "exec_mode": "functional",
        "vm": {
            "arch": "cdna3",
            "gpu": {
                "device": {
                    "gpu_id": 50148,
                    "gfx_target_version": 90402,
                    "device_id": 29857,
                    "marketing_name": "AMD Instinct MI300X",
                    "drm_render_minor": 128,
                }
            },
        },
        "topology": {"root": {"name": "soc", "type": "soc"}},
    }
)

#: The same of configs/gfx950_mi355x_kmd_2gpu.json and of configs/guest_gfx950_on_simulated_gfx942.json.
TWO_MI350X = json.dumps(
    {
        "exec_mode": "functional",
        "vm": {
            "gpu": {
                "num_gpus": 2,
                "device": {"gfx_target_version": 90500, "marketing_name": "AMD Instinct MI350X"},
            }
        },
    }
)
GUEST = json.dumps(
    {
        "dbt_guest": {
            "enabled": True,
            "guest_isa": "gfx950",
            "host_isa": "gfx942",
            "execution_backend": "simulator",
            "guest_device": {"gfx_target_version": 90500, "marketing_name": "AMD Instinct MI350X"},
        }
    }
)

#: A GPU node of the topology that the emulator generates (kmd/linux/sysfs.cpp), as far as anyone here reads it.
NODE = "cpu_cores_count 0\nsimd_count 1216\nwave_front_size 64\ngfx_target_version 90402\nvendor_id 4098\n"


def maps(*paths: str) -> str:
    """/proc/self/maps with these files in it."""
    lines = ["55d0c0000000-55d0c0001000 r--p 00000000 08:01 1234                       /usr/bin/python3.12"]
    lines += [
        f"7f00000{i:05x}-7f00001{i:05x} r-xp 00002000 08:01 99                      {p}" for i, p in enumerate(paths)
    ]
    return "\n".join([*lines, "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]"])


def seen(environ: Mapping[str, str], files: Mapping[str, str], mapped: str | None) -> emulator.Emulator | None:
    return emulator.recognise(environ, mapped, files.get)


#: What ``rocjitsu --config gfx942_cdna3_kmd.json -- command`` leaves to the command.
LOCAL = {"LD_PRELOAD": LIBRARY, "ROCJITSU_INVOCATION_DIR": "/run/user/7/rocjitsu/41207", "PATH": "/usr/bin"}
LOCAL_FILES = {
    "/run/user/7/rocjitsu/41207/config_path": "/c/gfx942_cdna3_kmd.json\n",
    "/c/gfx942_cdna3_kmd.json": MI300X,
}


def test_in_process() -> None:
    found = seen(LOCAL, LOCAL_FILES, maps("/usr/lib/libc.so.6", LIBRARY))
    assert found == emulator.Emulator("rocjitsu", LIBRARY, True, "in-process", "/c/gfx942_cdna3_kmd.json", MI300X)
    assert emulator.describe(found) == {
        "name": "rocjitsu",
        "mode": "in-process",
        "arch": "gfx942",
        "product": "AMD Instinct MI300X",
        "exec_mode": "functional",
        "config": "gfx942_cdna3_kmd.json",
        "config_sha256": emulator.describe(found)["config_sha256"],
    }
    assert len(emulator.describe(found)["config_sha256"]) == 64


@pytest.mark.parametrize(
    "more",
    [
        {"ROCJITSU_DAEMON_PID": "41208"},
        {},
    ],
)
def test_daemon(more: dict[str, str]) -> None:
    folder = "/run/user/7/rocjitsu/41207"
    files = {f"{folder}/daemon.sock": "", f"{folder}/effective_config.json": TWO_MI350X}
    found = seen({**LOCAL, **more}, files, maps(LIBRARY))
    assert found is not None and found.mode == "daemon"
    assert emulator.facts(found.config) == {
        "arch": "gfx950",
        "product": "AMD Instinct MI350X",
        "exec_mode": "functional",
        "gpus": 2,
    }


def test_the_configuration_is_found_where_the_runtime_keeps_it() -> None:
    for environ, folder in (
        ({"ROCJITSU_RUNTIME_DIR": "/r"}, "/r"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/rocjitsu"),
    ):
        files = {f"{folder}/config_path": "/c.json\n28851\n", "/c.json": MI300X}
        found = seen({"LD_PRELOAD": LIBRARY, **environ}, files, maps(LIBRARY))
        assert found is not None and (found.config_path, found.config) == ("/c.json", MI300X)


def test_a_guest_of_another_gpu_is_emulated_too() -> None:
    environ = {
        "LD_PRELOAD": LIBRARY,
        "HSA_TOOLS_LIB": "/opt/rocm/lib/librocjitsu_hooks.so",
        "ROCJITSU_RUNTIME_DIR": "/r",
    }
    found = seen(environ, {"/r/config_path": "/g.json\n28851\n", "/g.json": GUEST}, maps(LIBRARY))
    assert found is not None and found.mode == "guest"
    assert emulator.describe(found)["guest_of"] == "gfx942" and emulator.architecture(found) == "gfx950"


def test_older_launchers() -> None:
    environ = {"LD_PRELOAD": "/m/librocjitsu_kmd.so", "RJ_CONFIG": "/m/rj_config.json"}
    found = seen(environ, {"/m/rj_config.json": MI300X}, maps("/m/librocjitsu_kmd.so"))
    assert found is not None and emulator.architecture(found) == "gfx942"


@pytest.mark.parametrize(
    "preload",
    [
        f"/usr/lib/libasan.so.8:{LIBRARY}",
        f"{LIBRARY}:/home/me/libmine.so",
        f"{LIBRARY} /home/me/libmine.so",
        "/opt/rocm/lib/librocjitsu.so.0.2",
    ],
)
def test_the_library_among_others_in_ld_preload(preload: str) -> None:
    assert seen({"LD_PRELOAD": preload}, {}, None) is not None


def test_the_library_stays_seen_when_its_variable_is_gone() -> None:
    found = seen({}, {}, maps(LIBRARY))
    assert found is not None and found.loaded and found.config == ""


def test_a_library_that_is_asked_for_and_not_loaded() -> None:
    found = seen(LOCAL, LOCAL_FILES, maps("/usr/lib/libc.so.6"))
    assert found is not None and not found.loaded


@pytest.mark.parametrize(
    ("environ", "mapped"),
    [
        ({}, maps("/usr/lib/libc.so.6")),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, maps("/usr/lib/libjemalloc.so.2")),
        # A process that lost LD_PRELOAD runs on what is really there, whatever other variables say.
        ({"ROCJITSU_INVOCATION_DIR": "/r", "ROCJITSU_SESSION": "s"}, maps("/usr/lib/libc.so.6")),
        ({"LD_PRELOAD": "/home/me/librocjitsu.so.d/libmine.so"}, maps("/home/me/librocjitsu.so.d/libmine.so")),
        ({"LD_PRELOAD": "/x/notlibrocjitsu.so"}, None),
        ({}, None),
    ],
)
def test_real_processes_are_not_taken_for_emulated_ones(environ: dict[str, str], mapped: str | None) -> None:
    assert seen(environ, LOCAL_FILES, mapped) is None


def test_this_process_is_real() -> None:
    assert emulator.here() is None
    assert device.availability("device") != (False, "")
    assert all(not name.startswith("emulator") for name in targets.here())


@pytest.mark.parametrize(
    "config", ["", "{", "[]", '{"vm": 3}', '{"vm": {"gpu": {"device": {"gfx_target_version": "x"}}}}']
)
def test_text_that_is_no_configuration_says_nothing(config: str) -> None:
    assert emulator.facts(config) == {}


def test_the_architecture_comes_from_the_topology_where_no_configuration_is_read(tmp_path: Path) -> None:
    for node, text in (("0", "cpu_cores_count 64\ngfx_target_version 0\n"), ("1", NODE)):
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(text)
    assert kfd.amd_architecture(tmp_path) == "gfx942"
    assert kfd.amd_architecture(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("number", "name"),
    [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_gfx_names(number: int, name: str) -> None:
    assert kfd.gfx_name(f"simd_count 4\ngfx_target_version {number}\n") == name


def test_versions() -> None:
    printed = "rocjitsu 0.2.0\ngit revision: 036c72af\ngit commit: 2026-06-23 Release"
    assert emulator.version(printed) == ("0.2.0", "036c72af")
    assert emulator.version("rocjitsu 0.3.0-rc1\ngit revision: unknown\n") == ("0.3.0-rc1", "")
    assert emulator.version("something else") == ("", "")


def test_the_version_of_a_library_without_one_is_not_known() -> None:
    unknown = emulator.Emulator("rocjitsu", "/nowhere/librocjitsu.so", True, "in-process")
    assert emulator.installed_version(unknown) == ("", "")


def test_hardware_facts_say_that_the_gpu_is_emulated() -> None:
    found = seen(LOCAL, LOCAL_FILES, maps(LIBRARY))
    assert found is not None
    told = emulator.undisguised(
        {"vendor": "amd", "name": "AMD Instinct MI300X", "arch": "gfx942", "power_cap": 750}, found
    )
    assert told["name"] == "AMD Instinct MI300X, emulated by rocjitsu"
    assert "power_cap" not in told and told["emulator"]["config"] == "gfx942_cdna3_kmd.json"


def test_a_records_environment_names_emulator_version_and_configuration(
    under: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "installed_version", lambda found: ("0.2.0", "036c72af"))
    versions, commits = {"vllm": "0.32.0"}, {"vllm": "abc"}
    told, line = environment.emulated({"cpu": "x", "name": "AMD Instinct MI300X"}, versions, commits)
    assert versions == {"vllm": "0.32.0", "rocjitsu": "0.2.0"} and commits["rocjitsu"] == "036c72af"
    assert told["emulator"]["arch"] == "gfx942" and "emulated" in told["name"] and told["cpu"] == "x"
    assert line == "rocjitsu 0.2.0: the GPU is emulated (in-process, functional, gfx942_cdna3_kmd.json)"


def test_an_emulated_environment_needs_the_emulator() -> None:
    with pytest.raises(Unavailable):
        environment.emulated({}, {}, {})


@pytest.fixture
def under(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, as if it ran under the emulator with an installed torch for ROCm."""
    found = seen(LOCAL, LOCAL_FILES, maps(LIBRARY))
    monkeypatch.setattr(emulator, "here", lambda: found)
    monkeypatch.setattr(device, "torch_build", lambda: "hip")
    monkeypatch.setattr("capmatrix.targets.emulator.missing", lambda *modules: "")


def test_under_the_emulator_its_target_is_here_and_the_device_is_not(under: None) -> None:
    assert targets.availability("emulator:gfx942") == (True, "")
    assert targets.here() == ["emulator:gfx942"]
    ok, why = targets.availability("device")
    assert not ok and "not real" in why and "emulator:gfx942" in why
    ok, why = targets.availability("emulator:gfx950")
    assert not ok and "use emulator:gfx942" in why


def test_an_emulator_that_is_not_loaded_makes_no_target_available(under: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "here", lambda: seen(LOCAL, LOCAL_FILES, maps()))
    assert not targets.availability("emulator:gfx942")[0] and not targets.availability("device")[0]


def test_code_rewritten_for_another_gpu_is_neither_emulated_nor_the_device(
    under: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewriting = "/h/lib/libhotswap_intercept.so"
    monkeypatch.setattr(emulator, "here", lambda: seen({"LD_PRELOAD": rewriting}, {}, maps(rewriting)))
    ok, why = targets.availability("emulator:gfx942")
    assert not ok and "rewrites code" in why
    assert not targets.availability("device")[0]


def test_a_torch_that_is_not_for_rocm(under: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "torch_build", lambda: "")
    ok, why = targets.availability("emulator:gfx942")
    assert not ok and "built for the CPU alone" in why


def test_the_doctor_shows_one_emulator_where_there_is_none_and_its_own_under_it(
    request: pytest.FixtureRequest,
) -> None:
    shown = [i for i in doctor.here(lambda: 1) if i.name.startswith("emulator")]
    assert [(i.name, i.ok) for i in shown] == [("emulator:<arch>", None)]
    request.getfixturevalue("under")
    shown = [i for i in doctor.here(lambda: 1) if i.name.startswith("emulator")]
    assert [(i.name, i.ok) for i in shown] == [("emulator:gfx942", True)]


def test_cells_there_are_small() -> None:
    from capmatrix import matrix, paths

    loaded = matrix.load(paths.matrices_dir() / "smoke.toml")
    emulated, offline = (matrix.expand(loaded, targets=[t])[0] for t in ("emulator:gfx942", "offline:gfx942"))
    assert (emulated.lengths, offline.lengths) == ("short", "full")


def test_an_emulated_record_stands_in_its_architectures_column_on_its_own_rung() -> None:
    from samples import cell, record

    from capmatrix.summary import place

    assert place(record(cell(target="emulator:gfx942"), rung=Rung.EMULATED), None).architecture == "gfx942"


def test_what_ran_there_is_emulated_whatever_the_engine_calls_it() -> None:
    parsed = targets.parse("emulator:gfx942")
    assert (parsed.kind, parsed.arch, parsed.emulated) == ("device", "", "gfx942")
    assert parsed.name == "emulator:gfx942"
    assert rungs.reachable("emulator:gfx942") is Rung.EMULATED
    assert "emulator:gfx1201" in targets.known()


def test_limits_are_longer_there_and_compiling_is_the_cpus() -> None:
    limits = Limits(compile_s=600, run_s=300)
    longer = for_target(limits, "emulator:gfx942")
    assert (longer.compile_s, longer.run_s) == (600, 300 * limits.emulated_factor)
    assert for_target(limits, "device") == limits == for_target(limits, "offline:gfx942")
