"""`cpr-wrap curve`: exact calls, what is written, and how it ends."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch

from cpr_wrap.attacks.ensemble import BUDGETS
from cpr_wrap.cli import _load
from cpr_wrap.evaluation import Check, Estimate, load_result
from cpr_wrap.metrics import PAPER_ALPHAS
from cpr_wrap.rules import Confidence, Consistency
from tests.processes import ROOT, run


@pytest.fixture
def calls(monkeypatch, result):
    """Calls of `robustness_curve`, which answers with a curve from disk."""
    made = []

    def robustness_curve(*args, **options):
        made.append((args, options))
        return load_result(result)

    monkeypatch.setattr("cpr_wrap.evaluation.sweep.robustness_curve", robustness_curve)
    return made


def test_the_library_is_called_with_what_was_typed(saved, calls, type_command):
    words = ["--num", "8", "--eps", "8/255", "--radius", "0.1", "--steps", "20"]
    words += ["--step-size", "1/100", "--budget", "paper", "--seed", "5", "--store", "kept"]
    words += ["--batch-size", "32", "--block-size", "4"]
    words += ["--alphas", "0,1/2,1", "--ablation", "--out", "here"]
    words += ["--dtype", "bf16", "--compile", "--channels-last"]
    answer = type_command("curve", f"local:{saved}", *words)
    assert answer.exit_code == 0, answer.output
    [((model, x, y, eps), options)] = calls
    assert model.rule == Consistency(radius=0.1, steps=20, step_size=0.01)
    assert (x.shape, y.tolist()) == ((8, 1, 28, 28), [7, 2, 1, 0, 4, 1, 4, 9])
    assert eps == 8 / 255
    assert {**options, "store": str(options["store"])} == {
        "certify": False,
        "donors": None,
        "alphas": (0.0, 0.5, 1.0),
        "budget": BUDGETS["paper"],
        "extras": (),
        "seed": 5,
        "batch_size": 32,
        "block_size": 4,
        "store": "kept",
        "norm": "Linf",
        "indices": list(range(8)),
        "points": None,
        "ablation": True,
        "progress": True,
        "dtype": "bf16",
        "compile": True,
        "channels_last": True,
    }


def test_what_is_left_out_comes_from_the_model(saved, calls, type_command, tmp_path):
    assert type_command("curve", f"local:{saved}", "--num", "8").exit_code == 0
    [((model, _, _, eps), options)] = calls
    assert (model.rule.name, eps) == ("none", 0.1)
    assert options["alphas"] == PAPER_ALPHAS
    assert options["budget"] is BUDGETS["standard"]
    assert (options["seed"], options["batch_size"]) == (0, None)
    assert str(options["store"]) == "runs/saved+none+Linf-0.1/store"
    assert (tmp_path / "runs" / "saved+none+Linf-0.1" / "result.json").is_file()


def test_calibrate_sets_the_rule_first_and_is_recorded(saved, calls, type_command):
    words = ("--rule", "confidence", "--calibrate", "0.05", "--num", "8", "--out", "here")
    assert type_command("curve", f"local:{saved}", *words).exit_code == 0
    [((model, *_), _)] = calls
    assert isinstance(model.rule, Confidence)
    record = load_result("here").calibration
    assert record.after == {"name": "confidence", "threshold": model.rule.threshold}
    assert record.reject_rate == 0.05
    assert record.num_rejected == int(record.num_correct * 0.05)


def test_a_real_run_writes_a_folder_that_says_everything(result, saved):
    found = load_result(result)
    about = found.about
    assert about.name == "means"
    assert about.model == f"local:{saved}"
    assert (about.dataset, about.part) == ("mnist", "robust")
    assert "that come with cpr-wrap" in about.dataset_note
    assert about.command.startswith(f"cpr-wrap curve local:{saved} --num 8 --budget quick")
    assert found.settings.rule.config == {"name": "confidence", "threshold": 0.8}
    assert found.eps == 0.05
    assert found.calibration is None
    assert (result / "gallery.json").is_file()
    assert (result / "store").is_dir()


def test_a_model_that_knows_its_training_says_seen_or_unseen(calls, type_command):
    words = ("--num", "8", "--rule", "none", "--out", "here")
    assert type_command("curve", "bundled:mnist-compact-at", *words).exit_code == 0
    assert load_result("here").about.trained_eps == 0.3


def test_a_budget_in_rounds_may_be_run_again(saved, type_command):
    words = ("curve", f"local:{saved}", "--num", "4", "--rule", "none", "--out", "here")
    for _ in range(2):
        answer = type_command(*words, "--budget", "tests.budgets:Rounds")
        assert answer.exit_code == 0, answer.output
    assert {"darken", "lighten"} <= {stage.attack for stage in load_result("here").passes}


def test_people_get_table_losses_and_the_next_step(saved, calls, result, type_command):
    answer = type_command("curve", f"local:{saved}", "--num", "8", "--out", "here")
    found = load_result(result)
    assert f"{100 * found.accuracy_at(0.0):.1f}%" in answer.stdout
    for text in ("robustness", "rejection loss", "ramp t = 2", "clean images:", "passes per image"):
        assert text in answer.stdout
    assert "written to here; next: cpr-wrap report here" in answer.stdout
    assert answer.stderr.splitlines()[-1] == (
        f"local:{saved}, none (accepts everything), 8 images of mnist, Linf eps 0.1"
    )


def test_machines_get_json_and_nothing_else(saved, calls, result, type_command):
    answer = type_command("curve", f"local:{saved}", "--num", "8", "--out", "here", "--json")
    content = json.loads(answer.stdout)
    assert content["folder"] == "here"
    rows = [{k: v for k, v in row.items() if v is not None} for row in content["figures"]["curve"]]
    assert rows == load_result(result).table()
    assert "points" not in content


def test_ctrl_c_says_where_the_work_is(saved, monkeypatch, type_command):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("cpr_wrap.evaluation.sweep.robustness_curve", interrupted)
    answer = type_command("curve", f"local:{saved}", "--num", "3", "--out", "here")
    assert answer.exit_code == 130
    assert answer.stderr.splitlines()[-1] == (
        "stopped; finished work is in here/store. To resume, run the same command again: "
        f"cpr-wrap curve local:{saved} --num 3 --out here"
    )


def test_estimate_probes_and_does_not_run(saved, monkeypatch, calls, type_command, tmp_path):
    asked = []

    def estimate_cost(*args, **options):
        asked.append((args, options))
        return Estimate(images=40, probed=8, passes_per_image=250.0, passes=10000.0, seconds=75.0)

    monkeypatch.setattr("cpr_wrap.evaluation.sweep.estimate_cost", estimate_cost)
    words = ("curve", f"local:{saved}", "--num", "40", "--estimate", "--budget", "quick")
    answer = type_command(*words)
    assert answer.stdout == (
        "about 10,000 passes (250 per image) and 1 min 15 s for 40 images with budget quick, "
        "from 8 of them\n"
    )
    [((_, x, _, eps), options)] = asked
    assert (len(x), eps) == (40, 0.1)
    assert options == {
        "budget": BUDGETS["quick"],
        "batch_size": None,
        "norm": "Linf",
        "extras": (),
        "audited": False,
    }
    assert calls == []
    assert list(tmp_path.iterdir()) == []
    assert json.loads(type_command(*words, "--json").stdout)["passes"] == 10000


def test_an_estimate_counts_the_audit_and_the_attacks_beside_the_budget(saved, type_command):
    words = ("curve", f"local:{saved}", "--num", "2", "--rule", "none")
    words += ("--budget", "tests.budgets:Dark", "--estimate", "--json")
    plain, audited = (json.loads(type_command(*words, *m).stdout) for m in ((), ("--audit",)))
    assert plain["audit_passes"] == 0
    assert audited["passes"] - audited["audit_passes"] == plain["passes"] > 0
    assert audited["audit_passes"] > 0
    more = json.loads(type_command(*words, "--attack", "foolbox:LinfPGD").stdout)
    assert more["passes"] > plain["passes"]


@pytest.mark.parametrize("more", [(), ("--estimate",)])
def test_a_process_that_does_not_lead_works_and_says_nothing(
    more, saved, monkeypatch, calls, type_command, tmp_path
):
    @contextmanager
    def second_of_two(device):
        yield False

    def estimate_cost(*args, **options):
        calls.append((args, options))

    monkeypatch.setattr("cpr_wrap.evaluation.sweep.estimate_cost", estimate_cost)
    monkeypatch.setattr(_load, "several_processes", second_of_two)
    monkeypatch.setenv("RANK", "1")
    answer = type_command("curve", f"local:{saved}", "--num", "3", "--out", "here", *more)
    # It takes part in the call, where the processes wait for each other.
    assert len(calls) == 1
    assert (answer.exit_code, answer.output) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_audit_is_printed_and_kept(saved, monkeypatch, calls, type_command):
    checks = (
        Check(name="more steps", passed=True, detail="3 = 3"),
        Check(name="eps 1", passed=False, detail="90%"),
        Check(name="planted", passed=None, detail="no room"),
    )
    asked = []

    def audit(*args, seed):
        asked.append((*args, seed))
        return checks

    monkeypatch.setattr("cpr_wrap.evaluation.sweep.audit", audit)
    answer = type_command(
        "curve", f"local:{saved}", "--num", "8", "--audit", "--seed", "3", "--out", "here"
    )
    assert "  ok  more steps: 3 = 3\n  NO  eps 1: 90%\n  -   planted: no room\n" in answer.stdout
    [(_, judged, seed)] = asked
    assert seed == 3
    assert judged.records == load_result("here").records
    assert load_result("here").checks[1].passed is False


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("local:nowhere",), "error: local:nowhere: expected a file of weights or a saved folder"),
        (("resnet18",), "error: expected an address like source:name, got 'resnet18'"),
        (("bundled:mnist-compact-xt",), "error: unknown bundled model 'mnist-compact-xt'."),
        (("local:x", "--rule", "cpq"), "error: unknown rejection rule 'cpq'. Did you mean 'cpr'?"),
    ],
)
def test_errors_are_one_line(words, line, type_command):
    answer = type_command("curve", *words)
    assert answer.exit_code == 1
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith(line)
    assert answer.stdout == ""


def test_an_unknown_budget_is_one_line(saved, type_command):
    answer = type_command("curve", f"local:{saved}", "--num", "2", "--budget", "quik")
    assert answer.exit_code == 1
    assert answer.stderr.splitlines()[-1].startswith("error: unknown budget 'quik'.")


@pytest.mark.integration
def test_two_processes_share_the_work_and_one_speaks(tmp_path, saved, type_command):
    words = [
        "curve",
        f"local:{saved / 'model.safetensors'}",
        "--network",
        "tests.budgets:linear",
        "-n",
        "4",
    ]
    words += [
        "--dataset",
        "mnist",
        "--eps",
        "0.2",
        "--rule",
        "none",
        "--budget",
        "tests.budgets:Dark",
    ]
    words += ["--batch-size", "16", "--block-size", "2", "--device", "cpu", "--json"]
    alone = type_command(*words, "--out", "one")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "--", "cpr_wrap", *words, "--out", "two"]
    together = run(*command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert together.returncode == 0, together.stderr
    # Two that print JSON would not make JSON.
    outputs = [json.loads(alone.stdout), json.loads(together.stdout)]
    assert [output["provenance"]["ranks"] for output in outputs] == [1, 2]
    one, two = load_result(tmp_path / "one"), load_result(tmp_path / "two")
    assert one.records == two.records
    assert one.records.outer_broken.any()
    for name, points in vars(one.points).items():
        assert torch.equal(points, getattr(two.points, name))


def test_a_folder_with_another_run_is_refused_before_any_work(saved, result, type_command):
    words = ["curve", f"local:{saved}", "--num", "8", "--budget", "quick", "--rule", "confidence"]
    words += ["--eps", "0.05", "--out", result, "--name", "means"]
    same = type_command(*words, "--threshold", "0.8", "--json")
    assert same.exit_code == 0, same.output
    for other in (("--threshold", "0.3"), ("--threshold", "0.8", "--seed", "1")):
        answer = type_command(*words, *other)
        assert answer.exit_code == 2
        assert (
            "holds another run, means (other images, weights, settings or engine); choose another"
            in answer.stderr
        )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--alphas", "0,2"), "alphas: expected shares of eps in [0, 1]"),
        (("--eps", "8"), "did you mean 8/255"),
        (("--eps", "1e9"), "already reaches every image"),
        (("--norm", "l3"), "unknown threat model 'l3'"),
        (("--rule", "confidence", "--radius", "1"), "rule confidence takes no radius"),
        (("--seed", "-1"), "--seed"),
        (("--budget", "quik"), "unknown budget 'quik'. Did you mean 'quick'?"),
        (("--attack", "nothing"), "unknown attack on rule none 'nothing'"),
        (("--indices", "3,x"), "expected whole numbers like 3,8,20-29"),
        (("--indices", "3,3"), "indices: expected without num"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(words, complaint, saved, calls, type_command):
    answer = type_command("curve", f"local:{saved}", "--num", "8", *words)
    assert answer.exit_code in (1, 2)
    assert complaint in " ".join(answer.stderr.replace("│", " ").split())
    assert calls == []


def test_alphas_are_completed_and_norms_are_read_in_any_case(saved, calls, type_command):
    for typed, alphas in (("0.05,0.5", (0.0, 0.05, 0.5, 1.0)), ("0", (0.0, 1.0))):
        words = ("--num", "8", "--alphas", typed, "--norm", "l2", "--out", typed)
        assert type_command("curve", f"local:{saved}", *words).exit_code == 0
        options = calls.pop()[1]
        assert (options["alphas"], options["norm"]) == (alphas, "L2")


def test_calibrate_tells_rate_interval_and_note(saved, calls, type_command):
    words = ("--rule", "confidence", "--calibrate", "1e-6", "--num", "8")
    answer = type_command("curve", f"local:{saved}", *words)
    assert "rejects 0 of " in answer.stderr
    assert "on new images 0.0% to 0." in answer.stderr
    assert "cannot resolve a rate of 1e-06" in answer.stderr


def test_a_threshold_above_1_is_warned_of(saved, calls, type_command):
    words = ("--rule", "confidence", "--threshold", "1.5", "--num", "8")
    answer = type_command("curve", f"local:{saved}", *words)
    assert "no probability is above 1, so that every image is rejected" in answer.stderr
