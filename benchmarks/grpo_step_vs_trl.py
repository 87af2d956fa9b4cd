"""One GRPO step of ours against one of TRL's GRPOTrainer: same model, precision, LoRA, tasks, group size and token budget.

The tasks are first turns of generated household tasks: the observation and the admissible actions are shown, the response is
paid by how much of its text an expert's action shares, plus a small bonus that differs between the rollouts of a group, so
that no group is flat. Our side would leave rows without advantage out; here every row of both sides is trained.

The sides run in processes of their own, in turns, after one step each to warm up; TRL's rows are batched to about as many
tokens as ours, which is faster for it than its default.

    python benchmarks/grpo_step_vs_trl.py                # SmolLM2-135M, 4 x 8 rollouts a step: six minutes on two cores
    python benchmarks/grpo_step_vs_trl.py --tiny         # a tiny random model: does it run?
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _models import random_nano
from _record import record

from gongfu.core import Task, rng_for
from gongfu.engine.runtime import prepare_cpu
from gongfu.envs.household.suite import HouseholdSuite
from gongfu.envs.protocol import Observation, Step
from gongfu.rollout.context import TextRules
from gongfu.rollout.tasks import TaskSampler

MAX_NEW = 12
MICRO_BATCH_ROWS = 4  # of about 240 tokens: as many tokens as our default micro-batch
BONUS = 0.01
RULES = TextRules(instructions=False, list_actions=True)
LR = 1e-5


class FirstTurns:
    """A suite whose episodes end after one action. `make` must be called for the rollouts of a group one after the other."""

    name = "first turns"
    splits: tuple[str, ...] = ("train",)
    max_steps = 1

    def __init__(self, options: argparse.Namespace) -> None:
        sizes = {"train": options.prompts * (options.steps + 1), "seen": 6, "unseen": 6}
        self._household = HouseholdSuite(sizes=sizes)
        self._group_size = options.group
        self._made = 0

    def tasks(self, split: str) -> tuple[Task, ...]:
        return tuple(self._household.tasks(split))

    def instructions(self) -> str:
        return self._household.instructions()

    def first(self, task: Task) -> tuple[Observation, str]:
        """What is shown, and what an expert does then."""
        observation = self._household.make(task).reset()
        rng = rng_for(0, purpose="expert", task=task.id)
        return observation, self._household.expert(task, rng).act(observation)

    def make(self, task: Task) -> FirstTurn:
        observation, answer = self.first(task)
        self._made += 1
        return FirstTurn(observation, answer, (self._made - 1) % self._group_size / self._group_size)


class FirstTurn:
    def __init__(self, observation: Observation, answer: str, bonus: float) -> None:
        self.observation, self.answer, self.bonus = observation, answer, bonus

    def reset(self) -> Observation:
        return self.observation

    def step(self, action: str) -> Step:
        paid = score(action, self.answer, self.bonus)
        return Step(Observation("Done."), reward=paid, terminated=True, outcome="failure", score=paid)

    def close(self) -> None:
        pass


def score(text: str, answer: str, bonus: float) -> float:
    """0 to 1: the share of characters in common, and a little that depends on the number of the rollout (0 to 1) alone."""
    return (1 - BONUS) * difflib.SequenceMatcher(None, text.strip(), answer).ratio() + BONUS * bonus


def draws(suite: FirstTurns, options: argparse.Namespace) -> list[list[Task]]:
    """The tasks of every step, the same on both sides."""
    sampler = TaskSampler(suite.tasks("train"), seed=0)
    return [sampler.draw(k, options.prompts) for k in range(options.steps + 1)]


class Clock:
    """Wall and processor seconds of one step."""

    def __enter__(self) -> Clock:
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start[0]
        self.cpu_seconds = time.process_time() - self._start[1]


def ours(pipe: Connection, options: argparse.Namespace) -> None:
    """Serve steps: for every message received, play and train one and send its numbers."""
    import torch

    from gongfu.config.schema import GRPOConfig, LocalEngineConfig, OptimConfig, Recipe, RolloutConfig, RunConfig
    from gongfu.engine.local import LocalEngine
    from gongfu.run import build

    recipe = Recipe(
        run=RunConfig(threads=options.threads),
        engine=LocalEngineConfig(model=str(options.model)),
        rollout=RolloutConfig(
            instructions=RULES.instructions, list_actions=RULES.list_actions, max_response=MAX_NEW, max_context=1024
        ),
        method=GRPOConfig(tasks=options.prompts, group_size=options.group),
        optim=OptimConfig(lr=LR),
    )
    suite = FirstTurns(options)
    with tempfile.TemporaryDirectory() as store:
        engine = build.build_engine(recipe, Path(store))
        assert isinstance(engine, LocalEngine)
        collector = build.build_collector(recipe, suite, engine.tokenizer, build.build_runner(recipe, suite))
        method = build.build_method(recipe, engine, collector, suite)
        dtype = str(next(engine._base.model.parameters()).dtype).removeprefix("torch.")
        pipe.send({"dtype": dtype, "threads": torch.get_num_threads()})
        for k in range(options.steps + 1):
            pipe.recv()
            before = engine.stats()
            with Clock() as clock:
                report = method.step(k)
            used = {key: value - before[key] for key, value in engine.stats().items()}
            rows = int(report.metrics["train/rows"])
            if rows != options.prompts * options.group or used["trained_tokens"] != used["sampled_tokens"]:
                raise RuntimeError(f"step {k}: only {rows} rows, {used['trained_tokens']} tokens were trained")
            pipe.send(
                {
                    "seconds": clock.seconds,
                    "cpu_seconds": clock.cpu_seconds,
                    "rows": rows,
                    "tokens_prompt": used["prompt_tokens"],
                    "tokens_sampled": used["sampled_tokens"],
                    "tokens_trained": used["trained_tokens"],
                    "tokens_computed": used["sample_processed_tokens"] + used["train_processed_tokens"],
                    "rollout_seconds": report.metrics["time/rollout_s"],
                }
            )


def trl(pipe: Connection, options: argparse.Namespace) -> None:
    """The same with TRL. The trainer runs all steps by itself, so a callback waits for the message that starts one."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from gongfu.engine.protocol import LoraSpec

    torch.set_num_threads(options.threads)
    dtype = pipe.recv()
    half, rows = dtype == "bfloat16", options.prompts * options.group
    tokenizer: Any = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, dtype))
    suite = FirstTurns(options)
    data = []
    for task in (task for drawn in draws(suite, options) for task in drawn):
        observation, answer = suite.first(task)
        data.append({"prompt": [{"role": "user", "content": RULES.observation(observation)}], "answer": answer})
    step: dict[str, Any] = {}

    def reward(prompts: list, completions: list, completion_ids: list, answer: list[str], **_: Any) -> list[float | None]:
        ids = [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=True)["input_ids"] for p in prompts]
        step["rows"] = len(completions)
        step["tokens_prompt"] = sum(map(len, ids))
        step["tokens_sampled"] = step["tokens_trained"] = sum(map(len, completion_ids))
        texts = [completion[0]["content"] for completion in completions]
        return [
            score(text, right, i % options.group / options.group)
            for i, (text, right) in enumerate(zip(texts, answer, strict=True))
        ]

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            pipe.recv()
            self.clock = Clock().__enter__()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.clock.__exit__()
            if step["rows"] != rows:
                raise RuntimeError(f"TRL trained {step['rows']} rows, not {rows}")
            pipe.send({**step, "seconds": self.clock.seconds, "cpu_seconds": self.clock.cpu_seconds})

    spec = LoraSpec()
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=half,
            fp16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=min(MICRO_BATCH_ROWS, rows),
            gradient_accumulation_steps=rows // min(MICRO_BATCH_ROWS, rows),
            num_generations=options.group,
            max_completion_length=MAX_NEW,
            max_steps=options.steps + 1,
            learning_rate=LR,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_grad_norm=1.0,
            shuffle_dataset=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        lora = LoraConfig(r=spec.rank, lora_alpha=int(spec.alpha), target_modules=list(spec.targets), task_type="CAUSAL_LM")
        trainer = GRPOTrainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_list(data),
            processing_class=tokenizer,
            reward_funcs=reward,
            peft_config=lora,
            callbacks=[Steps()],
        )
        pipe.send({})
        trainer.train()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Play the steps of both sides in turns."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pipes: dict[str, Connection] = {}
        processes: list[Any] = []

        def start(side: Any) -> None:
            pipes[side.__name__], theirs = context.Pipe()
            process = context.Process(target=side, args=(theirs, options), daemon=True)
            process.start()
            theirs.close()  # so that a dead process ends our waiting
            processes.append(process)
            stack.callback(process.terminate)

        start(ours)
        about = pipes["ours"].recv()
        start(trl)
        pipes["trl"].send(about["dtype"])
        pipes["trl"].recv()
        steps: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
        for k in range(options.steps + 1):
            for name, pipe in pipes.items():
                pipe.send("go")
                try:
                    steps[name].append(pipe.recv())
                except EOFError:
                    raise SystemExit(f"the {name} side died in step {k}; its traceback is above") from None
                print(f"step {k} {name:5}", {key: round(value, 2) for key, value in steps[name][-1].items()}, flush=True)
        for process in processes:
            process.join(20)
    return summary({name: done[1:] for name, done in steps.items()}, options) | about


def summary(steps: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> dict[str, Any]:
    def total(side: str, key: str) -> float:
        return sum(step[key] for step in steps[side])

    if total("ours", "tokens_prompt") != total("trl", "tokens_prompt"):
        raise SystemExit("the two sides were given different prompts")
    rows = total("ours", "rows")
    each = {side: [step["seconds"] * len(steps[side]) / rows for step in steps[side]] for side in steps}
    return {
        "ratio": round(total("trl", "seconds") / total("ours", "seconds"), 2),
        "cpu_ratio": round(total("trl", "cpu_seconds") / total("ours", "cpu_seconds"), 2),
        "ours_s": round(total("ours", "seconds") / rows, 4),
        "trl_s": round(total("trl", "seconds") / rows, 4),
        "ours_s_steps": [round(s, 4) for s in each["ours"]],
        "trl_s_steps": [round(s, 4) for s in each["trl"]],
        "ours_rollout_share": round(total("ours", "rollout_seconds") / total("ours", "seconds"), 3),
        "rows": int(rows),
        "steps": options.steps,
        "tokens_prompt": int(total("ours", "tokens_prompt")),
        "tokens_sampled": int(total("ours", "tokens_sampled")),
        "tokens_trained": int(total("ours", "tokens_trained")),
        "tokens_computed": int(total("ours", "tokens_computed")),
        "trl_tokens_sampled": int(total("trl", "tokens_sampled")),
        "trl_tokens_trained": int(total("trl", "tokens_trained")),
        "median_ratio": round(statistics.median(each["trl"]) / statistics.median(each["ours"]), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=str, default="smollm2", help="short name or folder")
    parser.add_argument("--prompts", type=int, default=4, help="tasks a step")
    parser.add_argument("--group", type=int, default=8, help="rollouts of a task")
    parser.add_argument("--steps", type=int, default=2, help="measured steps of each side, after one to warm up")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--tiny", action="store_true", help="a tiny random model, one step; nothing is recorded")
    options = parser.parse_args()

    prepare_cpu()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from gongfu.engine.models import resolve_model

    full = not options.tiny and options.steps >= 2 and options.prompts * options.group >= 32
    name = "tiny" if options.tiny else options.model
    with tempfile.TemporaryDirectory() as folder:
        if options.tiny:
            options.steps, options.prompts, options.group = 1, 2, 4
            options.model = random_nano(Path(folder), hidden=32, layers=2)
        else:
            options.model = resolve_model(options.model)
        result = measure(options)
    import trl as peer

    record("grpo_step_vs_trl", {**result, "model": name, "trl": peer.__version__}, full=full)


if __name__ == "__main__":
    main()
