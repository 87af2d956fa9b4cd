"""`gongfu sft`: a cold start. The adapter imitates successful episodes of a scripted expert, and a teacher's proposals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from gongfu.config.load import to_toml
from gongfu.config.schema import Recipe
from gongfu.core.errors import ConfigError
from gongfu.core.records import Row, Trajectory
from gongfu.core.seeds import rng_for
from gongfu.credit.losses import sft_loss
from gongfu.engine.chat import ChatClient
from gongfu.engine.protocol import Engine
from gongfu.envs.protocol import Suite
from gongfu.rollout.collector import Collector
from gongfu.rollout.rows import rows_of
from gongfu.rollout.tasks import TaskSampler
from gongfu.run.build import ACTOR, build_collector, build_engine, build_runner, load_suite, optim_params
from gongfu.run.checkpoint import CheckpointStore
from gongfu.run.demonstrations import demonstrate
from gongfu.run.evaluate import evaluate, fixed_tasks
from gongfu.run.folder import RunFolder
from gongfu.run.preflight import preflight
from gongfu.run.proposals import PROPOSAL_NOISE, proposal_stream, taught_rules
from gongfu.run.track import Tracker
from gongfu.run.trajectories import TrajectoryStore, read_trajectories
from gongfu.run.writers import ChatWriter


def sft_run(recipe: Recipe) -> Path:
    """Cold-start by a recipe in a new run folder; returns its path. Evaluates before and after."""
    preflight(recipe)
    suite = load_suite(recipe)
    held_out = fixed_tasks(suite, recipe.eval.split, recipe.eval.tasks)
    info = {"command": "sft", "seed": recipe.run.seed, "model": recipe.engine.model}
    with RunFolder.create(Path(recipe.run.folder) / recipe.run.name, config_toml=to_toml(recipe), info=info) as folder:
        with closing(build_engine(recipe, folder.path)) as engine, closing(build_runner(recipe, suite)) as runner:
            collector = build_collector(recipe, suite, engine.tokenizer, runner)
            shown = gather(recipe, suite, collector, engine)
            TrajectoryStore(folder.trajectories).write(0, "demonstrations", shown)
            rows = [row for t in shown for row in rows_of(t)]
            rows += written(recipe, suite, collector, engine, len(shown), folder.path)
            batches = -(-len(rows) // recipe.sft.batch) * recipe.sft.epochs
            with Tracker(folder, total=batches, tensorboard=recipe.run.tensorboard) as tracker:

                def held_out_success(step: int) -> None:
                    result = evaluate(recipe, engine, collector, held_out, label=f"step {step}", split=recipe.eval.split)
                    tracker.log(step, {"phase": "eval", **result.record()})

                held_out_success(0)
                steps = imitate(recipe, engine, rows, tracker)
                held_out_success(steps)
                CheckpointStore(folder.checkpoints).save(steps, lambda path: _write(engine, path))
        return folder.path


def gather(recipe: Recipe, suite: Suite, collector: Collector, engine: Engine) -> list[Trajectory]:
    """The successful demonstrations of a recipe. Raises ConfigError when there are too few to be had."""
    s = recipe.sft
    if s.transcripts:
        return [t for t in read_trajectories(s.transcripts) if t.success and t.turns][: s.demonstrations]
    sampler = TaskSampler(suite.tasks(s.split), recipe.run.seed)
    found: list[Trajectory] = []
    for step in range(100):
        tasks = sampler.draw(step, min(256, s.demonstrations))
        played = demonstrate(
            collector, suite, engine.tokenizer, tasks, seed=recipe.run.seed, noise=s.noise, skills=s.skills, step=step
        )
        found += [t for t in played if t.success]
        if len(found) >= s.demonstrations:
            return found[: s.demonstrations]
    raise ConfigError(
        f"the expert of suite {suite.name!r} solved {len(found)} tasks of {s.demonstrations} wanted; lower sft.noise"
    )


def written(recipe: Recipe, suite: Suite, collector: Collector, engine: Engine, episodes: int, folder: Path) -> list[Row]:
    """The teacher's proposals that go with so many episodes, for the policy's other role; none unless `sft.skills` asks."""
    share = recipe.sft.skills.proposals
    if not share:
        return []
    wanted = round(episodes * share / (1 - share))
    teacher = recipe.sft.teacher
    stream = proposal_stream(
        collector,
        suite,
        engine.tokenizer,
        taught_rules(recipe),
        writer=ChatWriter(ChatClient(teacher, folder / "teacher.sqlite")) if teacher else None,
        seed=recipe.run.seed,
        noise=PROPOSAL_NOISE,
        chunk=min(128, 4 * wanted),
    )
    return list(itertools.islice(stream, wanted))


def imitate(recipe: Recipe, engine: Engine, rows: Sequence[Row], tracker: Tracker) -> int:
    """Epochs over the rows in seeded order, one optimiser step a batch; returns the number of steps."""
    s, step = recipe.sft, 0
    for epoch in range(s.epochs):
        order = list(rows)
        rng_for(recipe.run.seed, purpose="sft order", step=epoch).shuffle(order)
        for start in range(0, len(order), s.batch):
            batch = order[start : start + s.batch]
            metrics = engine.forward_backward(batch, sft_loss(batch), adapter=ACTOR)
            metrics["sft/grad_norm"] = engine.optim_step(optim_params(recipe, s.lr), adapter=ACTOR)["grad_norm"]
            step += 1
            tracker.log(step, {"phase": "train", **metrics})
    engine.sync()
    return step


def _write(engine: Engine, folder: Path) -> dict[str, str]:
    engine.save(str(folder / "engine"))
    return {"engine": "engine"}
