// Keys of [ckpt], [eval], [trace], [fault]; sections and the complete list.
#include <array>

#include "config/key.hpp"

namespace trireme::config {

namespace {

void add_fault_keys(KeyList<Options>& keys) {
  keys.add(KEY(fault.at),
           "\"kind:rank:place:pass[:value]\" each: what happens to a rank (*: to all) when it "
           "comes to a place for the pass-th time (from 1; *: "
           "every time). Kinds: kill, segv, hang, suspend (SIGSTOP), exit (value: code), delay "
           "(value: ms), signal (value: its number, to itself), "
           "alloc_fail, io_fail, skip (it skips its next collective), open and gate (value: a "
           "number; a rank waits at `gate` until another has come to the `open` of the same "
           "number); places are the regions of trace.json (train, rollout, checkpoint write, ...), "
           "the points of a checkpoint's commit (ckpt.begin, ...) and its file operations "
           "(ckpt.fsync, ...). nan: places loss, grad, weight, generator (its weights, after a "
           "sync) and bucket (of weights on their way).")
      .expert();
  keys.add(KEY(fault.crash_at),
           "Name of a point of the checkpoint commit at which every rank ends at once.")
      .expert();
  keys.add(KEY(fault.io_fail),
           "\"op:n:errno[:rank]\": the n-th open, write, fsync, rename, close or mkdir of "
           "checkpoints fails, on that rank or on every one.")
      .expert();
  keys.add(KEY(fault.plugin_fault),
           "crash, hang, nan, short or slow: what the reward plugin is made to do.")
      .expert();
}

KeyList<Options> make_option_keys() {
  KeyList<Options> keys;
  add_run_keys(keys);
  add_model_keys(keys);
  add_reward_keys(keys);
  add_environment_keys(keys);
  add_rollout_keys(keys);
  add_algo_keys(keys);
  add_train_keys(keys);
  add_output_keys(keys);
  return keys;
}

void add_checkpoint_keys(KeyList<Options>& keys) {
  keys.add(KEY(ckpt.interval),
           "Iterations between two checkpoints, or the time (\"20m\"), or \"auto\": the time that "
           "loses least to saving and to failures, "
           "sqrt(2 x what a save holds training up x mean time between failures) (Young, Daly), "
           "from what saves have taken and ckpt.failure_rate. 0: only "
           "when the run stops or ends.")
      .at_least(0)
      .departs(
          "OpenRLHF: ckpt.save_steps = -1, never; here on, since jobs on supercomputers are "
          "killed.");
  keys.add(KEY(ckpt.failure_rate),
           "Failures per rank and hour that ckpt.interval = \"auto\" reckons with.")
      .expert()
      .above(0)
      .departs("Not in OpenRLHF; 2e-5 is what Llama 3 405B met per GPU.");
  keys.add(KEY(ckpt.keep),
           "Checkpoints that are kept; the oldest goes only after a newer one is committed.")
      .at_least(2)
      .departs("OpenRLHF: ckpt.max_num, which deletes first.");
  keys.add(KEY(ckpt.resume),
           "auto: from the newest good checkpoint in ckpt.path, from the start when there is none; "
           "never; or the folder of one "
           "checkpoint, obeyed once: a restart goes on from what the run has saved since.")
      .never_empty()
      .departs("OpenRLHF: ckpt.load_enable, off.");
  keys.add(KEY(ckpt.allow_changes),
           "Keys that may have another value than in the checkpoint that a start continues from, "
           "although that changes what is computed; a section is \"actor.\". Keys of conduct need "
           "no permission. Inputs that may have other content are named likewise: "
           "data.prompt_dataset, data.pretrain_dataset, data.dataset, model.tokenizer, model.path, "
           "critic.path, reference.path, reward.source.0.path.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(ckpt.path),
           "Folder of the checkpoints; empty: ckpt in run.dir. It may be run.dir itself.");
  keys.add(KEY(ckpt.save_hf),
           "When to export the weights in Hugging Face layout: never, at the end, or with every "
           "checkpoint too (hf-step-NNNNNN, which goes with its checkpoint).")
      .departs("OpenRLHF: true or false; its end export is always made.");
  keys.add(KEY(ckpt.best_metric),
           "Metric of the evaluation (eval_reward, eval_pass1, ...; sft, rm, dpo: eval_loss, "
           "eval_accuracy) whose best checkpoint is "
           "saved when it is seen, linked as `best` and never removed; losses are better when "
           "smaller. Empty: none.")
      .departs("OpenRLHF: ckpt.best_metric_key.");
  keys.add(KEY(ckpt.target),
           "The run is done (exit code 0) when ckpt.best_metric is at least this good. \"none\": "
           "it makes all its iterations.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(ckpt.patience),
           "The run is done when so many evaluations in a row brought no better ckpt.best_metric; "
           "0: never.")
      .at_least(0)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(ckpt.background), "Writes while training goes on; false: training waits.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(ckpt.copy_aside),
           "How much of the weights and moments that a save has not written yet an optimizer step "
           "may copy before it changes them: stage: one stage (a "
           "layer) at a time, then the step waits for the disk; all: it never waits, and takes up "
           "to 12 bytes per value of the rank's shards. From GPUs all is "
           "copied to the host when a save begins.")
      .expert()
      .departs("Not in OpenRLHF.");
  keys.add(KEY(ckpt.max_failures),
           "A save that fails is said at the next iteration and tried again, at longer and longer "
           "intervals, while training goes on. After so many "
           "failures in a row the run ends with exit code 74; 0: it goes on however many there "
           "are. The last save of a run must succeed in any case.")
      .expert()
      .at_least(0)
      .departs("Not in OpenRLHF.");
}

}  // namespace

void add_output_keys(KeyList<Options>& keys) {
  add_checkpoint_keys(keys);

  keys.add(KEY(eval.steps),
           "Iterations between two evaluations; the last iteration is always followed by one. -1: "
           "never.")
      .at_least(-1);
  keys.add(KEY(eval.dataset),
           "JSONL files to evaluate on, in the form of data.prompt_dataset (ppo) or data.dataset "
           "(sft, rm, dpo).")
      .departs("Local files only.");
  keys.add(KEY(eval.temperature), "Sampling temperature of the evaluation.").range(0, 100);
  keys.add(KEY(eval.n_samples_per_prompt),
           "Answers per evaluation prompt; pass@k is reported for k = 1 and this number.")
      .range(1, 4096);

  keys.add(KEY(trace.enabled), "Records events for trace.json; the end table is made in any case.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(trace.file), "File of the trace, relative to run.dir; opens in ui.perfetto.dev.")
      .expert()
      .never_empty();
  keys.add(KEY(trace.kernels), "Also records single kernels.").expert();
  keys.add(KEY(trace.nvtx),
           "Passes the regions on to NVTX, for NVIDIA Nsight Systems; needs a build that found "
           "NVTX.")
      .expert();

  keys.add(KEY(report.sinks),
           "Where the metrics go besides metrics.jsonl, as files of run.dir: csv (metrics.csv), "
           "mlflow (mlruns/, a file store), tensorboard (tensorboard/), wandb (wandb/, for `wandb "
           "sync`). Nothing is sent anywhere.")
      .words({"csv", "mlflow", "tensorboard", "wandb"})
      .departs("OpenRLHF: logger.wandb.key, which sends them, and logger.tensorboard_dir.");

  keys.add(KEY(plan.model),
           "A config.json, or a folder with one: the shape that `trireme plan` takes where "
           "model.path is not set or has no config.json on this machine. Looked for from the "
           "working directory, then from the deck's folder. Runs do not read it.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(plan.reward_model),
           "The same for reward models; empty: they are planned as large as the actor.")
      .departs("Not in OpenRLHF.");

  add_fault_keys(keys);
}

std::span<const Section> sections() {
  static constexpr std::array list{
      Section{"run", "The run: folder, seed, length, limits"},
      Section{"ranks", "Which ranks train, generate and score"},
      Section{"model", "The policy to train"},
      Section{"actor", "Policy loss and its optimizer"},
      Section{"critic", "Value network and its optimizer, for estimators with a critic"},
      Section{"reference", "The frozen reference policy"},
      Section{"reward", "Rewards; sources are a list of [[reward.source]]"},
      Section{"environment", "Programs that answer the policy's turns"},
      Section{"rollout", "Generation of samples"},
      Section{"data", "Data files and their columns"},
      Section{"algo", "Advantages, KL, preference losses"},
      Section{"train", "Batches, sharding, memory"},
      Section{"generate", "The generation engine"},
      Section{"weightsync", "New weights from trainers to generators"},
      Section{"ckpt", "Checkpoints, resume, export"},
      Section{"eval", "Evaluation during training"},
      Section{"trace", "Timings"},
      Section{"report", "Metrics for other programs"},
      Section{"plan", "Shapes of models that are not here, for `trireme plan`"},
      Section{"fault", "Faults to inject, for tests; refused when run.production is true"},
  };
  return list;
}

const KeyList<Options>& option_keys() {
  static const KeyList<Options> keys = make_option_keys();
  return keys;
}

}  // namespace trireme::config
