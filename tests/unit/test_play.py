"""`gongfu play`: an episode by hand, by a file of actions, by the expert; and the conformance kit."""

from __future__ import annotations

import io
import math
import os
import pty
from dataclasses import replace

import pytest

from gongfu.cli.main import main
from gongfu.core.records import Task
from gongfu.envs.protocol import Observation, Step
from gongfu.run.play import typed
from toy import ToyEnv, ToyExpert, ToySuite

TOY = "--suite.object=toy:ToySuite"
BARE = "--suite.object=test_play:Bare"


class Bare:
    """Without an expert, without listed actions, without an end of its own."""

    name, splits, max_steps = "bare", ("test",), 2

    def tasks(self, split):
        return [Task("bare/0", self.name, "saying", "say it", split)]

    def make(self, task):
        return Endless()

    def instructions(self):
        return "Say something."


class Endless:
    def reset(self):
        return Observation("Say it.")

    def step(self, action):
        if action == "boom":
            raise ValueError("no such word")
        return Step(Observation(f"You said {action}."), 0.25)

    def close(self):
        pass


class Broken(ToySuite):
    """A suite whose expert alone reaches what is wrong: a word that no list holds is paid without bound."""

    name = "broken"

    def make(self, task):
        return Unbounded(task)

    def expert(self, task, rng, *, noise=0.0):
        return ToyExpert("abracadabra")


class Unbounded(ToyEnv):
    def step(self, action):
        step = super().step(action)
        return replace(step, reward=math.inf) if action == "abracadabra" else step


@pytest.fixture
def play(monkeypatch, capsys):
    """Runs `gongfu play ...` on a custom suite with these lines as standard input; exit code, output, errors."""

    def run(*arguments, lines=()):
        monkeypatch.setattr("sys.argv", ["gongfu", "play", "--suite.name=custom", *arguments])
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        with pytest.raises(SystemExit) as stopped:
            main()
        out = capsys.readouterr()
        return stopped.value.code or 0, out.out, out.err

    return run


def test_numbers_and_texts_play_the_first_task_of_the_eval_split(play):
    code, out, _ = play(TOY, lines=["apple", "", "9", "2", "pear"])
    assert code == 0
    assert out.startswith("task toy/seen/0 (apple), split seen: pick the apple\n")
    assert "[system]\nPick the word you are asked for.\nAnswer with one action and nothing else.\n" in out
    shown = ToyEnv(ToySuite().tasks("seen")[0])
    first, second = shown.reset(), shown.step("apple").observation
    listed = "".join(f"  {i}. {action}\n" for i, action in enumerate(first.actions or (), 1))
    assert f"[turn 1 of 3]\n{first.text}\n{listed}> apple\nreward 1\n\n[turn 2 of 3]\n{second.text}\n" in out
    second_word = (second.actions or ())[1]
    assert f"there are 3 actions; type the number of one, an action as text, or q\n> {second_word}\n" in out
    assert "> pear   (not an admissible action)" in out
    reward = 1 + (second_word == "apple")
    assert out.endswith(f"\nfailure after 3 turns: reward {reward}, score {reward / 3:g}\n")


@pytest.mark.parametrize("lines", [["apple", "q", "apple"], ["apple"]])
def test_q_and_the_end_of_the_input_leave_the_episode(play, lines):
    code, out, _ = play(TOY, lines=lines)
    assert code == 0 and out.endswith("\nleft after 1 turn: reward 1\n")


def test_an_action_that_reads_like_a_number_or_q_is_the_action(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2\n3\nq\n"))
    assert [typed(Observation("", actions)) for actions in [("0", "1"), ("0", "1"), None, ("q",)]] == ["1", "1", "3", "q"]


def test_a_person_at_a_terminal_is_asked_for_each_line(play, monkeypatch, capsys):
    asked = "action (number, text, or q to leave): "
    _, piped, _ = play(TOY, lines=["q"])
    assert asked not in piped
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as person, os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        person.write(b"\n9\n2\n")
        assert typed(Observation("", ("yes", "no"))) == "no"
    assert capsys.readouterr().out == (
        f"  1. yes\n  2. no\n{asked}{asked}there are 2 actions; type the number of one, an action as text, or q\n{asked}"
    )


def test_the_expert_plays_every_turn(play):
    code, out, _ = play(TOY, "--expert", "--task=toy/train/1")
    assert code == 0 and out.startswith("task toy/train/1 (bread), split train")
    assert out.count("> bread\nreward 1\n") == 3 and "  1. " not in out
    assert out.endswith("\nsuccess after 3 turns: reward 3, score 1\n")


def test_the_suites_limit_of_steps_cuts_an_episode(play):
    code, out, _ = play(BARE, "--split=test", lines=["2", "q uietly", "more"])
    assert code == 0 and "> 2\n" in out and "\nYou said q uietly.\n" in out
    assert out.endswith("\nfailure, cut after 2 turns: reward 0.5, score 0\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([BARE, "--split=test", "--expert"], 2, "suite 'bare' has no scripted expert"),
        ([BARE], 2, "suite 'bare' has no split 'seen': name one of test by --split"),
        ([TOY, "--task=toy/seen/100"], 2, "suite 'toy' has no task 'toy/seen/100'; near: toy/seen/10, "),
        (
            [TOY, "--task=toy/seen/1", "--split=train"],
            2,
            "split 'train' of suite 'toy' has no task 'toy/seen/1'; near: toy/train/1",
        ),
        ([BARE, "--split=test"], 1, "ValueError: no such word"),
        ([TOY, "--check", "--expert"], 2, "leave out --task and --expert"),
        ([TOY, "--rollout.mod=choose"], 2, "unknown key rollout.mod"),
    ],
)
def test_what_cannot_be_played_is_one_clear_message(play, arguments, code, said):
    stopped, _, err = play(*arguments, lines=["boom"])
    assert stopped == code and said in err and "Traceback" not in err


def test_check_is_the_conformance_kit_with_the_suites_expert(play):
    code, out, _ = play(TOY, "--check")
    assert code == 0 and "suite toy: 48 tasks" in out and out.endswith("conforms\n")
    assert "suite toy: 24 tasks" in play(TOY, "--check", "--split=train")[1]
    code, out, _ = play("--suite.object=test_play:Broken", "--check")
    assert code == 1 and "[reward]" in out and "conforms" not in out
