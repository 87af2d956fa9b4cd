"""The verl engine: training on verl's workers (Ray, FSDP2, LoRA), sampling beside it."""

from gongfu.engine.verl.engine import VerlEngine as VerlEngine
