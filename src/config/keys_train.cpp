// Keys of [train], [generate], [weightsync].
#include "config/key.hpp"

namespace trireme::config {
namespace {

void add_weightsync_keys(KeyList<Options>& keys) {
  keys.add(KEY(weightsync.delta),
           "On CPUs: sends only the weights that changed where that is shorter; the result is the "
           "same, "
           "bit for bit.")
      .expert()
      .departs("Not in OpenRLHF.");
  keys.add(KEY(weightsync.bucket_bytes),
           "Weights are sent in pieces of this size, several at a time.")
      .expert()
      .range(4096, 0x1p29)
      .departs("Not in OpenRLHF: a message per tensor.");
  keys.add(KEY(weightsync.verify),
           "Compares a digest of the weights on both sides after every sync.")
      .expert()
      .departs("Not in OpenRLHF.");
  keys.add(KEY(weightsync.shared_memory),
           "auto: on a node with trainers generators read the weights in the trainers' memory, and "
           "keep what they need of it; where that memory cannot be shared they get "
           "messages, and the log says so. buckets: trainers pack for them, into buckets in shared "
           "memory. never: messages everywhere. On GPUs auto takes the trainers' own gathers where "
           "all generators are trainers, else messages from GPU to GPU by NCCL.")
      .expert()
      .departs("Not in OpenRLHF.");
}

}  // namespace

namespace {

void add_generate_keys(KeyList<Options>& keys) {
  keys.add(KEY(generate.backend),
           "What generates: fused are kernels of our own, for CPUs only; torch are LibTorch's "
           "operations, for any device; auto: fused on "
           "CPUs, torch on GPUs.")
      .expert()
      .departs("Not in OpenRLHF.");
  keys.add(KEY(generate.weights),
           "On CPUs: model: products take the weights as they are. int8: a copy in 8 bits, made "
           "after each weight sync, one scale for 64 elements of a row; "
           "the embedding, norms, biases and activations keep their type. Writes faster, from a "
           "policy that differs a little from the trained one: switch "
           "algo.advantage.is_correction_enable on. Takes 1.06 bytes a weight beside the weights "
           "themselves.")
      .departs("OpenRLHF: none; vLLM's quantization.");
  keys.add(KEY(generate.tensor_parallel),
           "Ranks that hold one replica of the policy for generation.")
      .range(1, 1024)
      .departs("OpenRLHF: vllm.tensor_parallel_size.");
  keys.add(KEY(generate.page_size), "Tokens of one page of the KV cache.").expert().range(1, 4096);
  keys.add(KEY(generate.kv_memory),
           "Memory of the KV cache: a share of what is free when generation starts, or a size.")
      .departs(
          "OpenRLHF: vllm.gpu_memory_utilization = 0.95 of the whole device; here a share of what "
          "the other roles leave.");
  keys.add(KEY(generate.keep_kv_memory),
           "Where trainers and generators of a rank take turns: the KV cache, and on GPUs weights "
           "that syncs send whole, stay in memory while trainers work if "
           "the memory plan has room for them, with a tenth of the memory left. false: they are "
           "given back. No bit of the results depends on it.")
      .expert()
      .departs("OpenRLHF: vllm.enable_sleep, off, which gives them back.");
  keys.add(KEY(generate.max_batch), "Sequences that a replica decodes together.").range(1, 1 << 20);
  keys.add(KEY(generate.max_batch_tokens), "Prompt tokens computed in one step of a replica.")
      .expert()
      .range(1, 1 << 24);
  keys.add(KEY(generate.prefix_sharing), "Prompts with a common beginning share its pages.")
      .expert()
      .departs(
          "OpenRLHF: vllm.enable_prefix_caching, off; here on, since texts do not depend on it.");
  keys.add(KEY(generate.fused_operators),
           "On GPUs: q, k and v of a layer by one product of the three weights, which lie one "
           "behind the other there, gate and up likewise, and what is between "
           "products by few kernels of our own. false: an operator at a time, as in training. Sums "
           "of products may be added in another order.")
      .expert()
      .departs("Not in OpenRLHF.");
  keys.add(KEY(generate.paged_attention),
           "On GPUs: attention of decoding sequences by a kernel of our own, which reads the "
           "cache's pages where they lie. false: "
           "LibTorch's attention, over keys and values that are gathered in each layer.")
      .expert()
      .departs("Not in OpenRLHF.");
  keys.add(KEY(generate.graphs),
           "On GPUs, with generate.paged_attention: steps in which sequences only decode are "
           "filled up to one of few sizes, recorded (CUDA graphs) and launched "
           "as one, instead of kernel by kernel; each recording is compared with the kernels it "
           "was made of before it is used. "
           "false: every kernel by itself.")
      .expert()
      .departs("OpenRLHF: vllm.enforce_eager, off.");
  keys.add(KEY(generate.shared_sums),
           "On CPUs: the ranks of a replica (generate.tensor_parallel) that lie on one node add up "
           "their parts of a layer's "
           "output in memory that they share; "
           "where it cannot be had MPI copies all parts to all of them, and the log says so. "
           "false: MPI everywhere. Texts and "
           "log-probs stay the same, bit for "
           "bit.")
      .expert()
      .departs("Not in OpenRLHF.");
  keys.add(KEY(generate.speculation_tokens),
           "On CPUs: while no more than 4 sequences run on a replica, a step also computes up to "
           "so many guesses of a sequence's next tokens (what "
           "followed the last time that its last tokens stood in it; of 4 sequences one each) and "
           "keeps those that are drawn too. Texts and log-probs "
           "stay the same, bit for bit. 0: off.")
      .expert()
      .range(0, 7)
      .departs("Not in OpenRLHF.");
}

void add_async_keys(KeyList<Options>& keys) {
  keys.add(KEY(train.async_depth),
           "0: roles take turns, every sample comes from the current policy. 1: generators work on "
           "the next batch while trainers "
           "train, with "
           "weights one step older. More, with train.partial_rollout_enable: they begin so many "
           "batches ahead at most.")
      .range(0, 64)
      .departs("OpenRLHF: train.async_enable, train.async_queue_size.");
  keys.add(
      KEY(train.partial_rollout_enable),
      "Generators take new weights between two tokens and go on with the answers they are at, "
      "instead of ending a batch first. "
      "Which weights wrote a token then depends on time; no token is older than train.async_depth "
      "versions when it is learned from. A rank that "
      "trains too writes before it trains: slots that are free take answers of the next batches.");
  keys.add(KEY(train.partial_rollout_order),
           "drawn: batches are learned from whole, in their order. finished: an iteration learns "
           "from as many prompts, those whose answers are "
           "finished first, and the others stay under way, so train.async_depth batches beyond "
           "what it needs keep generators busy; long answers may then "
           "be older than train.async_depth versions.")
      .expert();
  keys.add(KEY(train.partial_rollout_kv),
           "Where new weights come in the middle of an answer. recompute: its keys and values are "
           "computed again, so that each token is drawn as its version "
           "of the weights draws it. keep: they stay, which saves that pass; tokens behind are "
           "drawn from new weights that read old keys and values, and "
           "have the log-probs of that. Those of a generator that gives its cache back to train "
           "(generate.keep_kv_memory) are computed again.")
      .expert();
}

void add_memory_keys(KeyList<Options>& keys) {
  keys.add(KEY(train.shard_group),
           "Ranks that share one copy of weights and optimizer (ZeRO-3); gradients are summed over "
           "the groups. 0: all trainers; "
           "must divide their number. Reference and reward models are cut over as many reward "
           "ranks, where it divides these, else over all.")
      .at_least(0)
      .departs("OpenRLHF: ds.zpg, for weights only; its default stage is ZeRO-2, here always 3.");
  keys.add(KEY(train.reduce_dtype),
           "Type in which gradients are summed over ranks: bf16 halves what is sent and rounds "
           "each rank's part; the sum over micro-batches stays fp32.")
      .departs("OpenRLHF: ds.grad_accum_dtype; here fp32 unless asked.");
  keys.add(KEY(train.reduce_once),
           "Gradients go from rank to rank once a step: a rank adds those of its micro-batches up "
           "first, in fp32 and whole, which takes 4 bytes a parameter on "
           "each rank. false: with each micro-batch, which takes a block's.")
      .expert()
      .departs("OpenRLHF: once with ZeRO-1 and 0, with each micro-batch with ZeRO-2 and 3.");
  keys.add(KEY(train.exact_products),
           "On GPUs, and on processors with matrix units for bf16 (AMX) with a LibTorch over MKL: "
           "products of bf16 go into fp32 weight gradients as they are, added by "
           "the product itself. false: each is rounded to bf16 first, as LibTorch does it and as "
           "it is on other processors with native bf16.")
      .expert()
      .departs("OpenRLHF: rounded.");
  keys.add(KEY(train.keep_memory),
           "Memory for blocks whose activations are kept, instead of a number in train.recompute: "
           "by how much they may raise the planned peak, as a share "
           "of what the plan leaves free, or in bytes a rank. As many are kept as fit, the others "
           "are computed again; no bit of the results depends on "
           "it. none: train.recompute says it.")
      .departs("Not in OpenRLHF.");
  keys.add(
          KEY(train.recompute),
          "Blocks whose activations are computed again in backward instead of being kept; -1: all.")
      .at_least(-1)
      .departs(
          "OpenRLHF: actor.gradient_checkpointing_enable, off; here on, since the memory it saves "
          "decides what fits.");
  keys.add(KEY(train.logits_memory),
           "On CPUs: logits of a micro-batch that stay in memory from the loss to its gradient, in "
           "bytes a rank; what is beyond "
           "is computed a second time. No bit of the results depends on it. 0: all of them twice.")
      .expert()
      .range(0, 0x1p40)
      .departs("OpenRLHF keeps all logits.");
  keys.add(KEY(train.optimizer_offload),
           "fp32 weights and moments in host memory beside a GPU; they pass through it in each "
           "step.")
      .departs("OpenRLHF: ds.adam_offload.");
  keys.add(KEY(train.node_weights),
           "On CPUs of several nodes each node keeps whole weights once, in memory that its ranks "
           "share, and takes new ones from the network once a step. "
           "false: ranks keep their slices and gather each block as it is needed, which takes less "
           "memory and more of the network.")
      .expert()
      .departs("OpenRLHF: none; ZeRO-3 gathers.");
}

}  // namespace

void add_train_keys(KeyList<Options>& keys) {
  keys.add(KEY(train.batch_size), "Sequences per optimizer step, over all ranks (rm, dpo: pairs).")
      .range(1, 1 << 26);
  keys.add(KEY(train.micro_batch_tokens),
           "Packed tokens of one forward and backward pass on a rank; a longer sequence makes a "
           "pass of its own.")
      .range(1, 1 << 26)
      .departs(
          "OpenRLHF: train.max_tokens_per_gpu with train.dynamic_batch_enable; here always packed "
          "by tokens, so there is no "
          "train.micro_batch_size.");
  keys.add(KEY(train.max_epochs),
           "Passes over the samples of one iteration (sft, rm, dpo: over the data).")
      .range(1, 1000000);
  keys.add(KEY(train.num_episodes), "Passes over the prompts when run.iterations is 0.")
      .range(1, 1000000);
  add_async_keys(keys);
  add_memory_keys(keys);
  keys.add(KEY(train.enable_ema), "Keeps an exponential moving average of the actor's weights.");
  keys.add(KEY(train.ema_beta), "Its decay per optimizer step.").range(0, 1);
  keys.add(KEY(train.deterministic),
           "GPUs: only kernels and reductions of a fixed order; CPUs have no others. With "
           "train.partial_rollout_enable also: which weights write which token "
           "depends on the deck alone, so runs, and starts from a checkpoint after a kill or a "
           "stop (but one that is heard while plugins score an "
           "evaluation), have the same numbers bit for bit while the layout and the pages of the "
           "KV cache (generate.kv_memory) stay what they were. "
           "Generators then write a batch's share of what is under way and wait for new weights, "
           "and a stop waits for the end of the rollout. Without "
           "partial rollouts that holds at every train.async_depth.")
      .departs("OpenRLHF: train.full_determinism_enable.");
  keys.add(KEY(train.old_log_probs),
           "auto: the generator's log-probs serve as old log-probs, without a forward pass, while "
           "samples come from the current weights "
           "and both sides give the same bits; two sequences per rank are checked in every "
           "iteration, and the first difference brings "
           "the pass back. always: the pass is made in every iteration.")
      .expert()
      .departs("OpenRLHF always makes the pass; slime: --use-rollout-logprobs.");
  keys.add(KEY(train.max_skipped_steps),
           "Optimizer steps in a row that are left out because their gradient is not finite; one "
           "more ends the run with exit code 70, and names "
           "the first tensor and rank. 0: the first one ends it; -1: no limit.")
      .at_least(-1)
      .departs("OpenRLHF goes on for ever.")
      .expert();

  keys.add(KEY(train.divergence.kl),
           "The run ends with exit code 70 when the mean KL to the reference stays above this. "
           "\"none\": not looked at.")
      .above(0)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(train.divergence.entropy),
           "The same when the entropy stays below this; it is computed with actor.entropy_coef "
           "only.")
      .departs("Not in OpenRLHF.");
  keys.add(KEY(train.divergence.reward_drop),
           "The same when the mean reward stays so much below the best that this start has seen.")
      .above(0)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(train.divergence.patience),
           "Iterations in a row with a limit of train.divergence passed that end the run.")
      .at_least(1)
      .departs("Not in OpenRLHF.");
  keys.add(KEY(train.replica_check),
           "Iterations between two comparisons of the weights that shard groups "
           "(train.shard_group) hold alike: bits that differ come from a processor or "
           "memory that computes wrong, and end the run with the tensor and the ranks. 0: never.")
      .expert()
      .at_least(0)
      .departs("Not in OpenRLHF; Megatron-LM: --check-weight-hash-across-dp-replicas-interval.");

  add_generate_keys(keys);

  add_weightsync_keys(keys);
}

}  // namespace trireme::config
