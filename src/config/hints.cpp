// What to say about keys that are not ours.
#include <array>

#include "config/key.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {

namespace {

struct Renamed {
  std::string_view key;
  std::string_view here;
};
// OpenRLHF's names (0.11) whose meaning stands under another name.
constexpr std::array renamed{
    Renamed{"actor.model_name_or_path", "model.path"},
    Renamed{"critic.model_name_or_path", "critic.path"},
    Renamed{"ref.model_name_or_path", "reference.path"},
    Renamed{"reward.model_name_or_path", "[[reward.source]] with kind = \"model\" and path"},
    Renamed{"reward.remote_url", "[[reward.source]] with kind = \"plugin\" and command"},
    Renamed{"actor.gradient_checkpointing_enable", "train.recompute (-1: all blocks, 0: none)"},
    Renamed{"actor.num_nodes", "ranks.trainer"},
    Renamed{"actor.num_gpus_per_node", "ranks.trainer"},
    Renamed{"critic.num_nodes", "ranks.trainer (the critic lives with the actor)"},
    Renamed{"critic.num_gpus_per_node", "ranks.trainer (the critic lives with the actor)"},
    Renamed{"ref.num_nodes", "ranks.reward"},
    Renamed{"reward.num_nodes", "ranks.reward"},
    Renamed{"train.colocate_all", "empty [ranks]: all roles on all ranks"},
    Renamed{"train.seed", "run.seed"},
    Renamed{"train.micro_batch_size", "train.micro_batch_tokens (sequences are packed by tokens)"},
    Renamed{"train.max_tokens_per_gpu", "train.micro_batch_tokens"},
    Renamed{"train.dynamic_batch_enable",
            "nothing: batches are always packed by tokens (train.micro_batch_tokens)"},
    Renamed{"train.async_enable", "train.async_depth = 1"},
    Renamed{"train.async_queue_size", "train.async_depth"},
    Renamed{"train.full_determinism_enable", "train.deterministic"},
    Renamed{"train.dtype", "model.dtype"},
    Renamed{"rollout.micro_batch_size", "rollout.micro_batch_tokens"},
    Renamed{"rollout.max_tokens_per_gpu", "rollout.micro_batch_tokens"},
    Renamed{"data.input_key", "data.prompt_key"},
    Renamed{"data.output_key", "data.response_key"},
    Renamed{"ckpt.save_steps", "ckpt.interval"},
    Renamed{"ckpt.max_num", "ckpt.keep"},
    Renamed{"ckpt.best_metric_key", "ckpt.best_metric"},
    Renamed{"ckpt.load_enable", "ckpt.resume"},
    Renamed{"ckpt.output_dir", "run.dir"},
    Renamed{"ds.param_dtype", "model.dtype"},
    Renamed{"ds.grad_accum_dtype", "train.reduce_dtype"},
    Renamed{"ds.zpg", "train.shard_group"},
    Renamed{"ds.zero_stage", "nothing: always stage 3 (train.shard_group for hybrid sharding)"},
    Renamed{"ds.adam_offload", "train.optimizer_offload"},
    Renamed{"ds.packing_samples", "nothing: sequences are always packed"},
    Renamed{"ds.value_head_prefix", "value_head_prefix in the model's config.json"},
    Renamed{"vllm.num_engines", "ranks.generator and generate.tensor_parallel"},
    Renamed{"vllm.tensor_parallel_size", "generate.tensor_parallel"},
    Renamed{"vllm.gpu_memory_utilization", "generate.kv_memory"},
    Renamed{"vllm.enable_prefix_caching", "generate.prefix_sharing"},
    Renamed{"vllm.enable_sleep", "nothing: colocated roles give their memory back by themselves"},
    Renamed{"vllm.sync_backend", "[weightsync]"},
    Renamed{"kto.beta", "algo.dpo.beta with algo.dpo.loss = \"kto\" (trireme dpo)"},
    Renamed{"logger.logging_steps", "nothing: metrics.jsonl has a line per iteration"},
};

struct NotBuilt {
  std::string_view word;  // a whole word of the key, words being separated by dots and underscores
  std::string_view what;
};
constexpr std::array not_built{
    NotBuilt{"moe", "mixtures of experts"},
    NotBuilt{"expert", "mixtures of experts"},
    NotBuilt{"experts", "mixtures of experts"},
    NotBuilt{"aux_loss_coef", "mixtures of experts (their balancing loss)"},
    NotBuilt{"vision", "vision models"},
    NotBuilt{"visual", "vision models"},
    NotBuilt{"image", "vision models"},
    NotBuilt{"images", "vision models"},
    NotBuilt{"vlm", "vision models"},
    NotBuilt{"multiturn", "multi-turn rollouts"},
    NotBuilt{"multi_turn", "multi-turn rollouts"},
    NotBuilt{"agent", "multi-turn rollouts (agents)"},
    NotBuilt{"tools", "multi-turn rollouts (tools)"},
    NotBuilt{"fp8", "FP8"},
    NotBuilt{"4bit", "quantised training"},
    NotBuilt{"quantization", "quantised weights"},
    NotBuilt{"lora", "LoRA"},
    NotBuilt{"muon", "the Muon optimizer (AdamW only)"},
    NotBuilt{"optim", "a choice of optimizer (AdamW only)"},
    NotBuilt{"ring_attn", "context parallelism"},
    NotBuilt{"context_parallel", "context parallelism"},
    NotBuilt{"train.tensor_parallel",
             "tensor parallelism in training (generate.tensor_parallel is that of generation)"},
    NotBuilt{"actor.tensor_parallel",
             "tensor parallelism in training (generate.tensor_parallel is that of generation)"},
    NotBuilt{"pipeline_parallel", "pipeline parallelism"},
    NotBuilt{
        "wandb",
        "Weights & Biases (metrics.jsonl has everything, and the program opens no connection)"},
    NotBuilt{"tensorboard", "TensorBoard files (metrics.jsonl has everything)"},
    NotBuilt{"distill", "distillation"},
};

bool contains_word(std::string_view key, std::string_view word) {
  const auto separates = [](char c) { return c == '.' || c == '_'; };
  for (size_t at = key.find(word); at != std::string_view::npos; at = key.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || separates(key[at - 1])) && (end == key.size() || separates(key[end])))
      return true;
  }
  return false;
}

}  // namespace

std::string hint_for(std::string_view key) {
  for (const auto& entry : renamed) {
    if (entry.key == key) return base::text("(a name of OpenRLHF): here it is ", entry.here);
  }
  if (key.starts_with("data.chat_template_kwargs."))
    return "is in a table, but the variables are the JSON of an object in a text: "
           "data.chat_template_kwargs = '{\"enable_thinking\": false}'";
  for (const auto& entry : not_built) {
    if (contains_word(key, entry.word))
      return base::text("asks for ", entry.what, ", which Trireme does not have: remove it");
  }
  return "";
}

}  // namespace trireme::config
