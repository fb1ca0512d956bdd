#!/usr/bin/env python3
"""What report.sinks writes, read by the programs that it is for: TensorBoard's, W&B's and MLflow's own readers see the numbers of metrics.jsonl.

    sinks.py PROGRAM          CSV and TensorBoard
    sinks.py PROGRAM others   W&B and MLflow, in an environment of their own (./bootstrap.sh sinks)

Exit code 125 where the environment is missing.

One run of `trireme sft`, stopped after three iterations and continued to six.
"""

import csv
import importlib.metadata
import json
import math
import os
import pathlib
import sys
import tempfile

from compare import CACHE, Program, enter_environment, skip

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "inputs" / "tutorial" / "tokenizer"
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 272, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "tie_word_embeddings": True, "initializer_range": 0.05, "torch_dtype": "float32"}
DECK = """
[run]
dir = "run"
name = "a \\"run\\": 1"
[model]
path = "model"
dtype = "fp32"
[data]
dataset = ["rows.jsonl"]
max_len = 32
[eval]
dataset = ["rows.jsonl"]
steps = 2
[train]
batch_size = 4
[ckpt]
save_hf = "never"
[report]
sinks = ["tensorboard", "wandb", "mlflow", "csv"]
"""


def flat(line, prefix=""):
    """Numbers of a line of metrics.jsonl, groups with dots."""
    out = {}
    for key, value in line.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}.")
        elif value is not None:
            out[prefix + key] = float(value)
    return out


def expected(run):
    """{iteration: {metric: value}}"""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["iteration"]: {key: value for key, value in flat(line).items() if key != "iteration"} for line in lines}


def same(a, b, single=False):
    return a == b or math.isclose(a, b, rel_tol=1e-6 if single else 0, abs_tol=1e-30 if single else 0)


def compare(name, want, got, rename=lambda key: key, single=False, without=("time",)):
    """Both ways: each number of metrics.jsonl, and no other."""
    mistakes = []
    for iteration, values in want.items():
        values = {rename(key): value for key, value in values.items() if key not in without}
        ours = got.get(iteration, {})
        mistakes += [f"{name}: iteration {iteration}, {key}: {ours.get(key)} instead of {value}" for key, value in values.items()
                     if key not in ours or not same(ours[key], value, single)]
        mistakes += [f"{name}: iteration {iteration} has {key}" for key in ours if key not in values]
    mistakes += [f"{name}: iteration {iteration} was never made" for iteration in got if iteration not in want]
    print(f"{name}: {sum(map(len, got.values()))} numbers, {len(mistakes)} wrong")
    return mistakes


def collect(rows):
    out = {}
    for iteration, key, value in rows:
        out.setdefault(int(iteration), {})[key] = value
    return out


def tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    reader = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return collect((event.step, tag, event.value) for tag in reader.Tags()["scalars"] for event in reader.Scalars(tag))


def wandb(run):
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore
    (file,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    rows, kinds, name = [], [], None
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kinds.append(record.WhichOneof("record_type"))
        if kinds[-1] == "run":
            name = record.run.display_name
        if kinds[-1] == "history":
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows += [(record.history.step.num, key, value) for key, value in values.items() if not key.startswith("_")]
            assert values["_step"] == record.history.step.num
    assert kinds[:2] == ["header", "run"] and kinds[-1] == "exit" and name == 'a "run": 1', (kinds, name)
    return collect(rows)


def mlflow(run):
    import mlflow
    from mlflow.tracking import MlflowClient
    uri = (run / "mlruns").resolve().as_uri()
    mlflow.set_tracking_uri(uri)
    (found,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert found.info.run_name == 'a "run": 1' and found.info.status == "FINISHED", found.info
    assert found.data.params["train.batch_size"] == "4", found.data.params
    client = MlflowClient(uri)
    return collect((one.step, key, one.value) for key in found.data.metrics for one in client.get_metric_history(found.info.run_id, key))


def table(run):
    with (run / "metrics.csv").open(newline="") as file:
        return {int(row["iteration"]): {key: float(value) for key, value in row.items() if value and key not in ("iteration", "time")} for row in csv.DictReader(file)}


def main():
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    with tempfile.TemporaryDirectory(prefix="trireme-sinks-") as folder:
        folder = pathlib.Path(folder)
        program = Program(sys.argv[1], folder)
        (folder / "shape").mkdir()
        (folder / "shape" / "config.json").write_text(json.dumps(SHAPE))
        (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{i}+1=", "response": f"{i + 1}."}) + "\n" for i in range(24)))
        (folder / "deck.toml").write_text(DECK)
        program.run("init", "--shape", "shape", "--output", "model", "--tokenizer", TOKENIZER, "--dtype", "fp32")
        program.run("sft", "deck.toml", "run.iterations=3", "train.max_epochs=2")
        program.run("sft", "deck.toml", "run.iterations=6", "train.max_epochs=2")
        run = folder / "run"
        want = expected(run)
        assert sorted(want) == list(range(1, 7)) and "eval_loss" in want[2], want
        path = lambda key: key.replace(".", "/")
        if "others" in sys.argv:
            mistakes = compare("MLflow", want, mlflow(run), lambda key: key.replace("/", "."))
            mistakes += compare("W&B", want, wandb(run), path)
        else:
            mistakes = compare("csv", want, table(run)) + compare("TensorBoard", want, tensorboard(run), path, single=True)
    for mistake in mistakes[:20]:
        print(mistake)
    sys.exit(1 if mistakes else 0)


def enter_others():
    """Continues in the environment of sinks.txt, in the versions that it names."""
    environment = CACHE / "sinks"
    how = "./bootstrap.sh sinks installs wandb and mlflow-skinny, 200 MB"
    if pathlib.Path(sys.prefix).resolve() != environment.resolve():
        if not (environment / "bin/python").exists():
            skip(f"no environment in {environment}: {how}")
        os.execv(environment / "bin/python", [str(environment / "bin/python"), __file__, *sys.argv[1:]])
    for line in (ROOT / "tests/interop/sinks.txt").read_text().splitlines():
        name, equal, version = line.partition("==")
        if equal and importlib.metadata.version(name) != version:
            skip(f"{environment} has {name} {importlib.metadata.version(name)}, not {version}: {how}")


if __name__ == "__main__":
    enter_others() if "others" in sys.argv else enter_environment(__file__)
    main()
