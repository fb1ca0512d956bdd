// Keys of [run], [ranks].
#include "config/key.hpp"

namespace trireme::config {

namespace {

void add_ranks_keys(KeyList<Options>& keys) {
  keys.add(KEY(ranks.trainer),
           "Ranks that train: a count (4), ranks (\"0-3,6\") or nodes (\"nodes:0-1\"). Empty: all "
           "ranks, or those that "
           "ranks.generator leaves.")
      .number_as_text()
      .departs(
          "OpenRLHF places roles by actor.num_nodes and the like; here rank sets of one MPI job.");
  keys.add(KEY(ranks.generator),
           "Ranks that generate, in the same forms. Counts are laid out one after another "
           "(trainer, reward, generator) when they "
           "fit, else "
           "all from rank 0. Empty: all ranks, or those that ranks.trainer leaves.")
      .number_as_text()
      .departs("OpenRLHF: vllm.num_engines.");
  keys.add(KEY(ranks.reward),
           "Ranks of the reward model and the frozen reference, in the same forms. Empty: the "
           "trainer's ranks when ranks.trainer "
           "is set, else all.")
      .number_as_text()
      .departs("OpenRLHF: reward.num_nodes and ref.num_nodes.");
}

void add_thread_keys(KeyList<Options>& keys) {
  keys.add(KEY(run.threads),
           "Threads per rank: auto takes the cores that the launcher gave the rank, divided among "
           "the ranks of the node that have the "
           "same ones; phase divides them only among the ranks of the role that works while the "
           "others wait; or a number. Hardware "
           "threads of a core count once, and a control group's limit of processor time (cpu.max) "
           "caps both.")
      .number_as_text()
      .never_empty();
  keys.add(KEY(run.pin_threads),
           "auto keeps one thread on each core where the launcher (or taskset, or a control group) "
           "gave the rank cores that no other "
           "rank has, it starts as many threads, and OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY "
           "and KMP_AFFINITY are not set; never "
           "leaves threads to the kernel.")
      .expert()
      .departs("Not in OpenRLHF.");
  keys.add(KEY(run.memory_check),
           "What happens where the memory that the job will need (docs/user/plan.md) is more than "
           "is free on a GPU, or on a node and under "
           "the job's control group: refuse ends the run before weights are read; warn goes on.")
      .departs("Not in OpenRLHF.");
}

}  // namespace

void add_run_keys(KeyList<Options>& keys) {
  keys.add(KEY(run.name),
           "Name of the run in the log and the tables; empty: the deck's file name.");
  keys.add(KEY(run.dir), "Folder that everything is written into; made when it does not exist.")
      .never_empty();
  keys.add(KEY(run.seed),
           "Seed of prompt order, sampling and random weights. The same deck and seed give the "
           "same run.")
      .range(0, 9007199254740992.0)
      .departs("OpenRLHF: train.seed.");
  keys.add(KEY(run.device),
           "Where tensors live; auto takes CUDA when the build has it and every rank sees a GPU.");
  keys.add(KEY(run.isa),
           "Instruction set of the kernels on CPUs, and the most that LibTorch, oneDNN and MKL may "
           "use; auto: the processor's best. The "
           "environment variable TRIREME_ISA caps it for every program.")
      .expert()
      .departs("Not in OpenRLHF.");
  keys.add(KEY(run.iterations),
           "Iterations to run (sft, rm, dpo: optimizer steps); 0: train.num_episodes passes over "
           "the data. Fixes the length of "
           "the "
           "learning-rate schedule.")
      .at_least(0)
      .departs("OpenRLHF counts episodes only.");
  keys.add(KEY(run.walltime),
           "Time limit of the job, from its start. The run saves and leaves with exit code 75 when "
           "what is left is less than one more "
           "iteration and a checkpoint take. Under Slurm or PBS the scheduler's limit counts when "
           "it is nearer; 0: only the "
           "scheduler's.")
      .at_least(0)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(run.term_grace),
           "Time from SIGTERM until the scheduler kills (Slurm: KillWait or the partition's "
           "GraceTime, PBS: kill_delay). When it is too "
           "short for the rest of the iteration and a checkpoint, the run leaves before it is "
           "over: exit code 75 when every finished "
           "iteration is in a checkpoint, else 76. 0: take as long as it needs.")
      .at_least(0)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(run.stop_within),
           "How soon a stop request (a signal, the file `stop`, the walltime) is obeyed. step: ppo "
           "leaves inside an iteration, before its next optimizer "
           "step, out of a rollout or while it waits for a reward plugin; what is done of the "
           "iteration is saved or made again with the same bits. "
           "iteration: at its end.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(run.hang_timeout),
           "A rank that makes no progress for so long, or is not heard of, ends the job with exit "
           "code 70, and every rank says which one it was and "
           "where; a rank that waits for others is not meant, nor are pauses of the whole job. 0: "
           "never.")
      .at_least(0)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(run.io_timeout),
           "run.hang_timeout for ranks that read or write files (data, models, checkpoints, "
           "exports), never shorter than run.hang_timeout; 0: never.")
      .at_least(0)
      .departs("Not in OpenRLHF.")
      .expert();
  keys.add(KEY(run.mismatch_check),
           "Collective calls on a communicator behind which its ranks compare what they have "
           "called (operation, elements, type, root); a difference, which MPI "
           "does not notice, ends the job with exit code 70 and the first call that differs. 0: "
           "never.")
      .expert()
      .range(0, 256)
      .departs("Not in OpenRLHF.");
  add_thread_keys(keys);
  keys.add(KEY(run.log_level), "What log.txt and the rank logs contain.");
  keys.add(KEY(run.take_over),
           "Takes the run folder over from a job whose end cannot be found out (another host, no "
           "scheduler) once its heartbeat has "
           "been silent for 10 intervals. Give it on the command line of one start.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(run.production), "Refuses everything that is for tests only, such as [fault].")
      .departs("Not in OpenRLHF.");
  add_ranks_keys(keys);
}

}  // namespace trireme::config
