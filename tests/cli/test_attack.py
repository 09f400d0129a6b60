"""`cpr-wrap attack`: attacks by name, and a count of what holds."""

from __future__ import annotations

import json

import pytest

from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.attacks.ensemble import Listed
from cpr_wrap.cli._attacks import GUESTS, attack_names, find_attack
from cpr_wrap.objective import Goal
from cpr_wrap.rules import RULES, AcceptAll, Confidence, Consistency


def _find(name, rule=None):
    return find_attack(name, rule or Consistency(), steps=30, restarts=2)


@pytest.mark.parametrize("name", RULES)
def test_every_objective_of_every_rule_has_a_name(name):
    rule = RULES[name]()
    for objectives, goal in (
        (rule.inner, Goal.REJECTED),
        (rule.outer, Goal.ACCEPTED_MISTAKE),
    ):
        for objective in objectives:
            attack = _find(objective.name.lower(), rule)
            assert (attack.objective, attack.goal) == (objective, goal)
            assert (attack.steps, attack.starts) == (30, (0, 1, 2))
            assert objective.name in attack_names()


def test_guests():
    rule = Consistency()
    assert find_attack("autoattack", rule) == AutoAttackOnBase()
    assert find_attack("autoattack:small", rule) == AutoAttackOnBase(version="small")
    assert find_attack("autoattack-adaptive", rule) == AdaptiveAutoAttack()
    found = find_attack("foolbox:LinfPGD", rule)
    assert found.name == "Foolbox LinfProjectedGradientDescentAttack"
    with pytest.raises(ValueError, match="autoattack takes neither --iterations nor --restarts"):
        _find("autoattack")
    assert GUESTS.keys() <= attack_names().keys()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("CLCI", "unknown attack on rule cpr 'CLCI'. Did you mean 'CLCIA'"),
        ("RCDOA", "unknown attack on rule cpr 'RCDOA'"),
        ("autoattack:smal", "unknown version of AutoAttack 'smal'. Did you mean 'small'?"),
        ("foolbox:LinfPDG", "unknown Foolbox attack 'LinfPDG'. Did you mean 'LinfPGD'"),
    ],
)
def test_near_misses(name, complaint):
    with pytest.raises(LookupError) as caught:
        _find(name)
    assert complaint in str(caught.value)


def test_a_foolbox_attack_that_needs_settings_is_refused():
    with pytest.raises(ValueError, match="foolbox:VirtualAdversarialAttack cannot be made without"):
        _find("foolbox:VirtualAdversarialAttack")


def test_alone_is_a_budget_of_one():
    attack = _find("HCMOA", AcceptAll())
    assert Listed(name="only HCMOA", listed=(attack,)).stages(AcceptAll(), 0.1) == (attack,)


def _words(saved, name, *more):
    rule = ("--rule", "confidence", "--threshold", "0.2")
    return ("attack", f"local:{saved}", name, "-n", "12", "--iterations", "20", *rule, *more)


def test_counts_add_up(saved, type_command):
    answer = type_command(*_words(saved, "hcmoa", "--json"))
    counts = json.loads(answer.stdout)
    assert counts["attack"] == "HCMOA"
    assert (counts["eps"], counts["norm"], counts["images"]) == (0.1, "Linf", 12)
    assert counts["rule"] == {"name": "confidence", "threshold": 0.2}
    assert counts["accepted_mistakes"] > 0
    assert counts["problems"] == []
    outcomes = ("accepted_mistakes", "rejections", "resisted")
    assert sum(counts[name] for name in outcomes) == counts["right_when_clean"]


def test_an_inner_attack_rejects(saved, type_command):
    answer = type_command(*_words(saved, "LCIA", "--eps", "0.2", "--threshold", "0.9", "--json"))
    counts = json.loads(answer.stdout)
    assert (counts["eps"], counts["accepted_mistakes"]) == (0.2, 0)
    assert counts["rejections"] > 0


def test_people_get_sentences(saved, type_command):
    lines = type_command(*_words(saved, "HCMOA")).stdout.splitlines()
    assert lines[0].endswith("of 12 images are right when clean")
    assert lines[1].startswith("HCMOA made ")
    assert "accepted and wrong" in lines[1]
    assert lines[2] == "every recorded point was confirmed"
    assert "passes per image" in lines[3]


def test_an_unknown_attack_is_one_line(saved, type_command):
    answer = type_command(*_words(saved, "PDIA"))
    assert answer.exit_code == 1
    assert answer.stderr.startswith("error: unknown attack on rule confidence 'PDIA'.")
    assert len(answer.stderr.splitlines()) == 1


def test_a_rule_without_threshold_is_mentioned(saved, type_command):
    words = ("attack", f"local:{saved}", "HCMOA", "-n", "2", "--iterations", "2")
    answer = type_command(*words, "--rule", Confidence.name)
    assert "warning: rule confidence accepts everything at threshold 0" in answer.stderr
